"""The commands of `easyscale`. A new one is a new file here that defines `command`; its name is the file's."""
