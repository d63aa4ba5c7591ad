// Pages read from a disk may start no worker, and the search is one: a hidden frame takes its place.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = data =>
        setTimeout(() => this.dispatchEvent(new MessageEvent("message", {data})));
      const script = frame.contentDocument.createElement("script");
      script.src = address;
      this.loaded = new Promise(done => script.onload = done);
      frame.contentDocument.body.append(script);
    }
    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", {data})));
    }
  };
