// The text of one open round. Offsets count characters (code points); a string in the browser counts differently.

export class LiveText {
  constructor() {
    this.text = "";
    this.count = 0;
  }

  write(offset, text) {
    const added = Array.from(text);
    if (offset === this.count) {
      this.text += text;
      this.count += added.length;
    } else if (offset < this.count) {
      const known = Array.from(this.text);
      known.splice(offset, added.length, ...added);
      this.text = known.join("");
      this.count = known.length;
    } // past the end: a piece is missing, and the message itself will bring it
  }
}
