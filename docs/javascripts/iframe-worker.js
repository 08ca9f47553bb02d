// Browsers start no worker for a page that is opened from a folder, and the search is one: there a hidden frame does its
// work. Its name tells Material's plugin `offline` that none need be fetched from elsewhere.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.inside = new Promise((started) => {
        const frame = document.createElement("iframe")
        frame.hidden = true
        frame.onload = () => started(this.start(frame.contentWindow, new URL(url, location.href)))
        document.body.append(frame)
      })
    }

    start(inside, url) {
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inside.document.createElement("script")
      script.src = url
      return new Promise((started) => {
        script.onload = () => started(inside)
        inside.document.body.append(script)
      })
    }

    postMessage(data) {
      this.inside.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
