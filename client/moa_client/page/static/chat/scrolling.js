// Follows new text if the reader is at the end, and only then.

import { byId } from "../core/dom.js";

const NEAR_PX = 40;

export class Scrolling {
  constructor() {
    this.scroller = byId("scroller");
    this.button = byId("to-end");
    this.isFollowing = true;
    this.scroller.addEventListener("scroll", () => this.look(), { passive: true });
    this.button.addEventListener("click", () => {
      this.toEnd();
      byId("question").focus();
    });
    new ResizeObserver(() => this.follow()).observe(this.scroller);
  }

  get isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    return scrollHeight - scrollTop - clientHeight < NEAR_PX;
  }

  look() {
    this.isFollowing = this.isAtEnd;
    this.button.hidden = this.isFollowing;
  }

  /** After a change of what is shown. */
  follow() {
    if (this.isFollowing) this.scroller.scrollTop = this.scroller.scrollHeight;
    else this.button.hidden = this.isAtEnd;
  }

  /** Goes to the newest text and follows it. */
  toEnd() {
    this.isFollowing = true;
    this.button.hidden = true;
    this.follow();
  }
}
