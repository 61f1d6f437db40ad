// Search without a server. In a page that was opened from a folder browsers start no worker, in which the theme would
// search. So a frame that is not shown runs the worker's script there, and what it says is passed on.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.srcdoc =
        `<script>postMessage = message => parent.postMessage(message, "*")</script><script src="${url}"></script>`
      this.loaded = new Promise(resolve => this.frame.addEventListener("load", resolve))
      window.addEventListener("message", event => {
        if (event.source === this.frame.contentWindow) {
          this.dispatchEvent(new MessageEvent("message", { data: event.data }))
        }
      })
      document.body.append(this.frame)
    }

    postMessage(message) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data: message })))
    }

    terminate() {
      this.frame.remove()
    }
  }
  window.Worker = window.IFrameWorker
}
