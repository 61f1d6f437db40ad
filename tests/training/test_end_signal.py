"""SIGTERM while training."""

import os
import signal
import threading

from easyscale.training.end_signal import EndSignal, held_back


def test_both_the_new_and_the_old_handler_are_called_until_it_stops():
    called = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: called.append("old"))
    try:
        end = EndSignal(lambda: called.append("new"))
        end.listen()
        os.kill(os.getpid(), signal.SIGTERM)
        assert called == ["new", "old"]
        end.stop()
        os.kill(os.getpid(), signal.SIGTERM)
        assert called == ["new", "old", "old"]
        end.stop()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_in_another_thread_the_signal_stays_whose_it_is():
    before = signal.getsignal(signal.SIGTERM)
    end = EndSignal(lambda: None)
    thread = threading.Thread(target=end.listen)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before
    end.stop()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_that_is_held_back_arrives_at_the_end_where_it_belongs_then():
    called = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: called.append("old"))
    try:
        end = EndSignal(lambda: called.append("new"))
        with held_back():
            os.kill(os.getpid(), signal.SIGTERM)
            assert called == []
        assert called == ["old"]
        with held_back():
            os.kill(os.getpid(), signal.SIGTERM)
            end.listen()
            assert called == ["old"]
        assert called == ["old", "new", "old"]
        end.stop()
        os.kill(os.getpid(), signal.SIGTERM)
        assert called[3:] == ["old"]
    finally:
        signal.signal(signal.SIGTERM, before)
