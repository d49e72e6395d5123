// Puts the page together: one open conversation, the list of all, and the panel of the link.

import { Composer } from "./chat/composer.js";
import { Conversation } from "./chat/conversation.js";
import { options, OptionsDialog, otherOptions } from "./chat/options.js";
import { Notice, Scrolling, setUpColours, Turns, wantedChances } from "./chat/turns.js";
import { endWords, noticeWords } from "./chat/words.js";
import { askForKey } from "./core/api.js";
import { Connection } from "./core/connection.js";
import { Announcer, byId, setText, setUpKeys, setUpScheme, takeKeyFromAddress } from "./core/page.js";
import { Panel } from "./link/panel.js";
import { ConversationList } from "./side/list.js";
import { Drawers, ManageDialog } from "./side/manage.js";

class Page {
  constructor() {
    this.conversation = new Conversation();
    this.isStopping = false;
    /** @type {{message: string, hint: string} | null} why the conversation is not open */
    this.refusal = null;
    this.model = ""; // that was chosen, and that new conversations begin with
    this.countdown = 0; // the timer of the notice that counts down
    this.announcer = new Announcer();
    this.scrolling = new Scrolling();
    this.turns = new Turns(
      {
        again: (answer) => this.askInstead(answer.number, answer.question, otherOptions(this.sampling, this.thinking)),
        change: (answer, question) => this.askInstead(answer.number, question, options(this.thinking)),
        standalone: (answer) => this.writeStandalone(answer),
        keep: () => this.keep(),
        goOn: () => this.goOn(),
        permit: (call, permission) => this.permit(call, permission),
        leave: () => this.composer.focus(),
      },
      this.scrolling,
    );
    this.composer = new Composer((question) => this.ask(question), () => this.stop(), (text) => this.notice.pass(text));
    this.options = new OptionsDialog((system) => this.changeSystem(system));
    this.notice = new Notice({
      hurry: () => this.connection.hurry(),
      new: () => this.open(null),
      online: () => this.panel.wish(false),
      key: () => askForKey(() => this.connection.hurry()),
    });
    this.list = new ConversationList({ open: (id) => this.open(id), manage: (kept) => this.manage.open(kept) });
    this.manage = new ManageDialog({
      retitle: (id, title) => id === this.conversation.id && this.connection.send({ do: "title", title }),
      leave: (id) => id === this.conversation.id && this.open(null),
      done: () => this.list.refreshSoon(),
      say: (text) => this.notice.pass(text),
    });
    this.panel = new Panel(
      () => this.conversation,
      () => this.connection?.state ?? "connecting",
      () => this.showState(),
      (text) => this.notice.pass(text),
    );
    this.drawers = new Drawers((isOpen) => this.panel.timeline.setOpen(isOpen));
    this.connection = new Connection({
      onMessage: (message) => this.take(message),
      onState: (state, error) => this.setState(state, error),
    });
    setUpScheme(() => this.panel.timeline.recolour());
    setUpColours(() => this.turns.refresh("all"));
    setUpKeys({ search: () => this.drawers.openSide(), close: () => this.drawers.close(), stop: () => this.stop() });
    byId("new").addEventListener("click", () => this.open(null));
    byId("model").addEventListener("change", () => {
      if (this.connection.send({ do: "model", model: byId("model").value })) this.conversation.wanted = byId("model").value;
      this.showState();
    });
    byId("model").addEventListener("focus", () => this.connection.send({ do: "model" }));
    addEventListener("popstate", () => this.openFromAddress());
    this.openFromAddress();
    if (matchMedia("(pointer: fine)").matches) this.composer.focus(); // no keyboard on a screen that is only looked at
  }

  openFromAddress() {
    this.begin(new URLSearchParams(location.search).get("c"));
  }

  /** @param {string | null} id null: a new one @param {string | null} system of a new one */
  open(id, system = null) {
    history.pushState(null, "", id ? `/?c=${encodeURIComponent(id)}` : "/");
    this.begin(id, system);
    this.drawers.close();
    this.composer.focus();
  }

  /** @param {string | null} id @param {string | null} system */
  begin(id, system = null) {
    this.conversation = new Conversation();
    this.announcer.clear();
    this.turns.begin(this.conversation);
    this.scrolling.toEnd();
    this.composer.bind(id ?? "");
    this.list.setCurrent(id ?? "");
    this.connection.open(id, system);
  }

  /** @param {string} question @param {any} chosen @param {number} instead_of the number of an answer; 0: of none */
  ask(question, chosen = options(this.thinking), instead_of = 0) {
    if (!this.connection.send({ do: "ask", question, options: { ...chosen, ...wantedChances() }, instead_of })) {
      this.notice.pass("Not asked: there is no connection. The question stays here until there is one.");
      return false;
    }
    this.conversation.waiting.push({ question });
    this.turns.refresh("all");
    this.scrolling.toEnd();
    this.showState();
    return true;
  }

  /** @param {number} number of an answer, which goes with all after it @param {string} question @param {any} chosen */
  askInstead(number, question, chosen) {
    if (this.conversation.running) this.stop();
    this.ask(question, chosen, number);
  }

  /** Has this device's text back where the server has replaced it in the newest answer. */
  keep() {
    if (!this.connection.send({ do: "keep" })) this.notice.pass("There is no connection. Try it again when there is one.");
  }

  /** Continues the newest answer. */
  goOn() {
    const isSent = this.connection.send({ do: "continue", max_tokens: options(this.thinking).max_tokens });
    if (!isSent) this.notice.pass("There is no connection. Try it again when there is one.");
  }

  /** @param {string} call of a tool @param {string} permission once, always or denied */
  permit(call, permission) {
    const isSent = this.connection.send({ do: "permit", call, permission });
    if (!isSent) this.notice.pass("There is no connection. The call waits until there is one.");
  }

  /** Has this device write, right or not. @param {import("./chat/answer.js").Answer} answer that waits for the server */
  writeStandalone(answer) {
    this.connection.send({ do: "standalone" });
    if (!answer.isRunning) this.askInstead(answer.number, answer.question, answer.options ?? options(this.thinking));
  }

  /** Once: the server is asked for the end; twice: the answer ends at once. */
  stop() {
    if (!this.conversation.isBusy) return false;
    this.connection.send({ do: this.isStopping ? "abandon" : "stop" });
    this.isStopping = true;
    return true;
  }

  /** @param {string | null} system */
  changeSystem(system) {
    if (this.conversation.answers.length || this.conversation.isBusy) this.open(null, system);
    else if (this.connection.send({ do: "system", system })) {
      this.conversation.facts.system = system;
      this.connection.wanted.system = system;
    }
    this.showState();
  }

  /** @param {import("./core/connection.js").ConnectionState} state @param {{message: string, hint: string} | null} error */
  setState(state, error) {
    this.refusal = error;
    if (state === "locked") askForKey(() => this.connection.hurry());
    this.showState();
  }

  /** @param {any} message of the daemon */
  take(message) {
    if (message.event === "opened") return this.takeOpened(message);
    if (message.event === "error") return this.takeError(message);
    const change = this.conversation.apply(message, performance.now());
    if (change.answers) this.turns.refresh(change.answers);
    if (change.spoken) this.announcer.add(change.spoken);
    if (change.ended) this.announcer.end(endWords(change.ended, this.conversation.status?.state));
    if (change.ended || ["asked", "continued"].includes(message.event)) this.isStopping = false;
    if (change.list) this.list.refreshSoon();
    if (message.event === "models" && !message.models.length) this.model = message.model;
    if (message.event === "link") this.panel.read(); // it may be as the user wishes it
    if (message.event === "failed" && message.taken_back && change.ended) this.composer.putBack(change.ended.question);
    if (message.event === "asked") {
      history.replaceState(null, "", this.address);
      this.composer.rename(this.conversation.id);
    }
    if (change.facts || message.event === "provisional" || message.event === "corrected") this.showState();
    this.panel.refresh();
    return undefined;
  }

  /** How answers are chosen where nothing is set. */
  get sampling() {
    return this.conversation.facts.sampling ?? {};
  }

  /** How the model marks reasoning; null: it has none to be asked for. */
  get thinking() {
    return this.conversation.facts.thinking ?? null;
  }

  get address() {
    return this.conversation.id ? `/?c=${encodeURIComponent(this.conversation.id)}` : "/";
  }

  /** @param {any} message */
  takeOpened(message) {
    const lost = this.conversation.waiting.filter(({ question }) => message.answers.at(-1)?.question !== question);
    const before = this.conversation;
    this.conversation = new Conversation();
    this.isStopping = false;
    this.conversation.apply(message, performance.now());
    if (before.id === this.conversation.id) this.conversation.remarks = before.remarks;
    this.turns.begin(this.conversation);
    if (this.composer.conversation) this.composer.bind(this.conversation.id);
    else if (this.conversation.answers.length) this.composer.rename(this.conversation.id);
    if (lost.length) this.composer.putBack(lost.map(({ question }) => question).join("\n"));
    this.list.setCurrent(this.conversation.id);
    this.list.refreshSoon();
    this.connection.send({ do: "model" });
    if (!["", message.target].includes(this.model) && !message.answers.length) this.connection.send({ do: "model", model: this.model });
    this.showState();
    this.panel.read();
  }

  /** The menu of models, which is open to those who have a choice. */
  showModels() {
    const { models, facts } = this.conversation;
    const menu = byId("model");
    menu.hidden = models.length < 2;
    const shown = [...menu.options].map(({ value, title }) => [value, title]);
    if (JSON.stringify(shown) !== JSON.stringify(models)) {
      menu.replaceChildren(...models.map(([name, about]) => Object.assign(new Option(name), { title: about })));
    }
    menu.value = this.conversation.wanted || facts.model;
  }

  /** @param {any} message a request was refused */
  takeError(message) {
    if (this.connection.state !== "open") return;
    const refused = this.conversation.running ? null : this.conversation.waiting.pop();
    if (refused) this.composer.putBack(refused.question);
    this.turns.refresh("all");
    this.notice.pass(`${message.message} ${message.hint}`);
    this.showState();
  }

  /** Everything but the texts themselves. */
  showState() {
    const { conversation, connection } = this;
    setText(byId("title"), conversation.name);
    document.title = conversation.answers.length ? `${conversation.name} – moa` : "moa";
    this.notice.show(noticeWords(connection.state, this.refusal, conversation, this.panel.wantsOnline));
    clearTimeout(this.countdown);
    if (conversation.status?.state === "waiting") this.countdown = setTimeout(() => this.showState(), 1000);
    this.composer.show({ canAsk: connection.state === "open", isBusy: conversation.isBusy });
    this.options.bind(conversation.facts.system ?? null, conversation.answers.length > 0, this.sampling, this.thinking);
    byId("app").dataset.connection = connection.state;
    this.showModels();
    this.panel.draw();
  }
}

takeKeyFromAddress();
new Page();
