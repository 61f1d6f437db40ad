"""The commands of `easyscale`. To add one, add a file here that defines `command`; the file name is its name."""
