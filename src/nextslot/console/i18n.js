// The texts of the page in one language: the user's choice, else the browser's, else English. Each language is one file
// in texts/ with the same keys and placeholders.
const LANGUAGE = "nextslot-language";
export const LANGUAGES = { en: "English", ko: "한국어" };

const preferred = [localStorage.getItem(LANGUAGE), ...navigator.languages]
  .map((one) => String(one || "").slice(0, 2))
  .find((one) => Object.hasOwn(LANGUAGES, one));
export const language = preferred || "en";
const texts = (await (language === "ko" ? import("./texts/ko.js") : import("./texts/en.js"))).default;
document.documentElement.lang = language;

export function setLanguage(value) {
  localStorage.setItem(LANGUAGE, value);
  location.reload();
}

// The text of a key, with {0}, {1} … filled in.
export function t(key, ...values) {
  return texts[key].replace(/\{(\d)\}/g, (_, index) => String(values[index]));
}

// A number of things: "one|many", or one form where the language has no plural.
export function plural(number, unit) {
  const [one, many = one] = texts[`n_${unit.replaceAll(" ", "_")}`].split("|");
  return (number === 1 ? one : many).replace("{0}", Number(number).toLocaleString(language));
}

// A code of the API, such as a status or job.run.failed, in words; one that is not known stays as it is.
export const said = (kind, code) => texts[`${kind}_${String(code).replaceAll(".", "_")}`] ?? String(code);
