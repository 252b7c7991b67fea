// The lines of a log as a page keeps them: text without control characters, colours as classes, levels, and rows of one
// height each, so that any part can be drawn without the rest. Knows nothing of the document.
export const LEVELS = ["none", "debug", "info", "warning", "error"];
// A row has at most so many columns, even where lines are not wrapped: a line of a megabyte is many rows.
const WIDEST = 2000;
const MOST_HITS = 10_000;
const TAB = 8;

// Sequences of a terminal: colours, other sequences with parameters, titles and links, two-letter ones; and control characters.
const SPECIAL =
  /\x1b\[([\d;:]*)m|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]|[\x00-\x1f\x7f-\x9f]/g;
const HAS_SPECIAL = /[\x00-\x1f\x7f-\x9f]/;
const LEVEL =
  /\b(?:(ERROR|FATAL|CRITICAL|SEVERE|PANIC)|(WARN(?:ING)?)|(INFO|NOTICE)|(DEBUG|TRACE))\b|\blevel"?\s*[=:]\s*"?(?:(error|fatal|critical|panic)|(warn(?:ing)?)|(info|notice)|(debug|trace))\b/;
const IS_ERROR = /^(?:Traceback \(most recent call last\)|(?:[\w.]*(?:Error|Exception)|error|fatal|panic)(?::|$))/i;
const IS_TRACEBACK = /Traceback \(most recent call last\):$/;
const IS_EXCEPTION = /^[A-Za-z_][\w.]*(?::|$)/;
const STAMP = /\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\s?(?:Z|[+-]\d\d:?\d\d)(?!\d)/;
// The sixteen colours of terminals, to which other colours are rounded.
const PALETTE = [
  0x000000, 0xcc0000, 0x4e9a06, 0xc4a000, 0x3465a4, 0x75507b, 0x06989a, 0xd3d7cf, 0x555753, 0xef2929, 0x8ae234, 0xfce94f,
  0x729fcf, 0xad7fa8, 0x34e2e2, 0xeeeeec,
];

export class Lines {
  // `first` is the number of the first line that is kept.
  constructor(first = 1) {
    this.first = first;
    this.texts = [];
    this.levels = [];
    this.colours = new Map(); // A line's coloured parts: [from, until, classes].
    this.hasStamps = false;
    this.wrapAt = 0;
    this.least = 0;
    this.longest = 0;
    this.rowLines = [];
    this.rowStarts = [];
    this.open = null; // What has come of a line that is not complete, and the style at its beginning.
    this.style = PLAIN;
    this.isInTraceback = false;
  }

  get count() {
    return this.texts.length;
  }

  append(text) {
    const pieces = text.split("\n");
    if (this.open) {
      pieces[0] = this.open.raw + pieces[0];
      this.style = this.open.style;
      this.isInTraceback = this.open.isInTraceback;
      this.#drop();
    }
    const rest = pieces.pop();
    for (const piece of pieces) this.#add(piece);
    this.open = rest ? { raw: rest, style: this.style, isInTraceback: this.isInTraceback } : null;
    if (rest) this.#add(rest);
  }

  // How lines become rows: the columns after which they are wrapped (0: not), and the least level that is shown.
  arrange(wrapAt, least) {
    if (wrapAt === this.wrapAt && least === this.least) return;
    Object.assign(this, { wrapAt, least, rowLines: [], rowStarts: [] });
    for (let line = 0; line < this.texts.length; line++) this.#addRows(line);
  }

  row(index) {
    const line = this.rowLines[index];
    const from = this.rowStarts[index];
    const until = this.rowLines[index + 1] === line ? this.rowStarts[index + 1] : this.texts[line].length;
    return { line, from, until, text: this.texts[line].slice(from, until), level: this.levels[line] };
  }

  // The row in which a place of a line is shown; of a line that is not shown, the next.
  rowOf(line, at = 0) {
    let [low, high] = [0, this.rowLines.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      const isBefore = this.rowLines[middle] < line || (this.rowLines[middle] === line && this.rowStarts[middle] <= at);
      if (isBefore) low = middle + 1;
      else high = middle;
    }
    const found = low - 1;
    return found >= 0 && this.rowLines[found] === line ? found : Math.min(low, Math.max(0, this.rowLines.length - 1));
  }

  // The instant at the beginning of a line, if it says its zone.
  stampOf(line) {
    const found = this.texts[line].slice(0, 80).match(STAMP)?.[0];
    const at = found && Date.parse(found.replace(" ", "T").replace(",", ".").replace(/\s/, "").replace(/([+-]\d\d)(\d\d)$/, "$1:$2"));
    return Number.isNaN(at) ? null : (at ?? null);
  }

  firstError = () => this.levels.indexOf(4);

  // Finds a text in lines from `line` on: [line, at] of each hit. Works for a few milliseconds, then says where to go on.
  find(needle, line, hits, milliseconds = 12) {
    const wanted = new RegExp(needle.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "giu");
    const end = performance.now() + milliseconds;
    for (; line < this.texts.length && hits.length < MOST_HITS; line++) {
      if (this.levels[line] < this.least) continue;
      for (const found of this.texts[line].matchAll(wanted)) if (hits.push([line, found.index]) >= MOST_HITS) break;
      if (line % 256 === 0 && performance.now() > end) return line + 1;
    }
    return null;
  }

  #add(raw) {
    const line = this.texts.length;
    const { text, colours, style } = parsed(raw, this.style);
    this.style = style;
    this.texts.push(text);
    if (colours) this.colours.set(line, colours);
    // The line that ends a traceback of Python says what failed, whatever the exception is called.
    const isItsEnd = this.isInTraceback && IS_EXCEPTION.test(text);
    this.isInTraceback = IS_TRACEBACK.test(text) || (this.isInTraceback && /^\s/.test(text));
    this.levels.push(isItsEnd ? 4 : levelOf(text, line ? this.levels[line - 1] : 0));
    this.hasStamps ||= STAMP.test(text.slice(0, 80));
    this.#addRows(line);
  }

  // Takes the last line back, which was not complete.
  #drop() {
    const line = this.texts.length - 1;
    this.texts.pop();
    this.levels.pop();
    this.colours.delete(line);
    while (this.rowLines.at(-1) === line) {
      this.rowLines.pop();
      this.rowStarts.pop();
    }
  }

  #addRows(line) {
    if (this.levels[line] < this.least) return;
    const text = this.texts[line];
    const columns = this.wrapAt || WIDEST;
    this.longest = Math.max(this.longest, Math.min(WIDEST, text.length));
    let at = 0;
    do {
      this.rowLines.push(line);
      this.rowStarts.push(at);
      at = cutAfter(text, at, columns, this.wrapAt > 0);
    } while (at < text.length);
  }
}

// Where a row that begins at `at` ends. Letters of East Asian scripts are two columns wide; a pair of surrogates stays whole.
function cutAfter(text, at, columns, isExact) {
  let end = Math.min(text.length, at + columns);
  if (isExact && end > at && /[\u1100-\uffff]/.test(text.slice(at, end))) {
    let room = columns;
    for (end = at; end < text.length; end++) {
      room -= text.charCodeAt(end) >= 0x1100 ? 2 : 1;
      if (room < 0) break;
    }
    end = Math.max(end, at + 1);
  }
  if (end < text.length && (text.charCodeAt(end) & 0xfc00) === 0xdc00 && (text.charCodeAt(end - 1) & 0xfc00) === 0xd800) end += 1;
  return end;
}

function levelOf(text, before) {
  const found = text.slice(0, 200).match(LEVEL);
  if (found) {
    const place = found.findIndex((one, index) => index > 0 && one !== undefined);
    return 4 - ((place - 1) % 4);
  }
  if (IS_ERROR.test(text)) return 4;
  // A line that is set in goes with the one before it, such as those of a traceback.
  return before && /^\s/.test(text) ? before : 0;
}

const PLAIN = { fg: null, bg: null, bold: false, faint: false, italic: false, underline: false, inverse: false };

// The text of a line as it is shown. What a carriage return would have overwritten on a terminal is left out.
function parsed(raw, style) {
  if (!HAS_SPECIAL.test(raw)) {
    const classes = classesOf(style);
    return { text: raw, colours: classes && raw ? [[0, raw.length, classes]] : null, style };
  }
  const parts = raw.split("\r").filter(Boolean);
  let text = "";
  let from = 0;
  let now = style;
  const colours = [];
  const close = () => {
    const classes = classesOf(now);
    if (classes && text.length > from) colours.push([from, text.length, classes]);
    from = text.length;
  };
  const last = parts.at(-1) || "";
  let at = 0;
  for (const found of last.matchAll(SPECIAL)) {
    text += last.slice(at, found.index);
    at = found.index + found[0].length;
    if (found[1] !== undefined) {
      close();
      now = styled(now, found[1]);
    } else if (found[0] === "\t") text += " ".repeat(TAB - (text.length % TAB));
    else if (found[0].length === 1) text += picture(found[0].charCodeAt(0));
  }
  text += last.slice(at);
  close();
  return { text, colours: colours.length ? colours : null, style: now };
}

// A control character as the sign that stands for it.
const picture = (code) => (code < 0x20 ? String.fromCharCode(0x2400 + code) : code === 0x7f ? "\u2421" : "\ufffd");

function styled(before, parameters) {
  const style = { ...before };
  const codes = parameters.split(/[;:]/).map(Number);
  for (let index = 0; index < codes.length; index++) {
    const code = codes[index];
    if (code === 0) Object.assign(style, PLAIN);
    else if (code === 1) style.bold = true;
    else if (code === 2) style.faint = true;
    else if (code === 22) style.bold = style.faint = false;
    else if (code === 3 || code === 23) style.italic = code === 3;
    else if (code === 4 || code === 24) style.underline = code === 4;
    else if (code === 7 || code === 27) style.inverse = code === 7;
    else if (code === 39) style.fg = null;
    else if (code === 49) style.bg = null;
    else if (code === 38 || code === 48) {
      const isIndexed = codes[index + 1] === 5;
      const rest = codes.slice(index + 2, index + (isIndexed ? 3 : 5));
      style[code === 38 ? "fg" : "bg"] = isIndexed ? indexed(rest[0]) : nearest(rest);
      index += isIndexed ? 2 : 4;
    } else if (code >= 30 && code <= 37) style.fg = code - 30;
    else if (code >= 40 && code <= 47) style.bg = code - 40;
    else if (code >= 90 && code <= 97) style.fg = code - 82;
    else if (code >= 100 && code <= 107) style.bg = code - 92;
  }
  return style;
}

function indexed(number) {
  if (!(number >= 0 && number < 256)) return null;
  if (number < 16) return number;
  if (number > 231) return nearest(Array(3).fill(8 + (number - 232) * 10));
  const cube = [Math.floor((number - 16) / 36), Math.floor((number - 16) / 6) % 6, (number - 16) % 6];
  return nearest(cube.map((one) => (one ? 55 + one * 40 : 0)));
}

function nearest([red = 0, green = 0, blue = 0]) {
  let [best, least] = [0, Infinity];
  PALETTE.forEach((colour, index) => {
    const far = ((colour >> 16) - red) ** 2 + (((colour >> 8) & 255) - green) ** 2 + ((colour & 255) - blue) ** 2;
    if (far < least) [best, least] = [index, far];
  });
  return best;
}

function classesOf({ fg, bg, bold, faint, italic, underline, inverse }) {
  const [front, back] = inverse ? [bg, fg ?? 7] : [fg, bg];
  return [
    front !== null && `fg-${front}`,
    back !== null && `bg-${back}`,
    bold && "bold",
    faint && "faint",
    italic && "italic",
    underline && "underline",
  ]
    .filter(Boolean)
    .join(" ");
}
