// One call of a tool by an answer, as the messages of the daemon tell it. It shows nothing.

export class Call {
  /**
   * @param {string} id
   * @param {string} tool
   * @param {string} args a JSON object
   * @param {string} server that has the tool; empty: none has, or it is not known any more
   */
  constructor(id, tool, args, server = "") {
    this.id = id;
    this.tool = tool;
    this.args = args;
    this.server = server;
    this.waits = false; // for the user to say whether it may be run
    this.isDenied = false;
    this.isOver = false;
    this.isError = false;
    this.content = ""; // what the model is told
  }

  /**
   * A call of which an answer's options have the result.
   * @param {any} fields
   */
  static of(fields) {
    const call = new Call(fields.id, fields.name, fields.arguments);
    call.answer(fields);
    return call;
  }

  /** @param {{content: string, is_error: boolean}} fields */
  answer(fields) {
    Object.assign(this, { waits: false, isOver: true, content: fields.content, isError: fields.is_error });
  }

  /** How it is, in words. */
  get words() {
    if (this.waits) return "The model wants to call this tool. May it?";
    if (this.isDenied) return "You did not allow this call.";
    if (!this.isOver) return "It runs …";
    return this.isError ? "It failed." : "";
  }
}
