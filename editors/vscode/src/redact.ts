/** Takes out of a log what says who and where the user is; the logs hold no source text. */

export interface Private {
  readonly home: string;
  readonly user: string;
  readonly folders: readonly string[];
}

const SECRET =
  /((?:token|password|passwd|secret|api[-_]?key|authorization|bearer)["']?\s*[=: ]\s*["']?)[^\s"',;]+/gi;
const CREDENTIALS = /(:\/\/)[^/\s@]+@/g;
const EMAIL = /[\w.+-]+@[\w-]+(?:\.[\w-]+)+/g;
/** An absolute path, of either kind; what is left of others above stands behind a mark. */
const PATH =
  /(?<![\w.:/<>~\\-])(?:[A-Za-z]:[\\/]+|\/)(?:[^\s/\\"',:;()]+[\\/]+)+([^\s/\\"',:;()]+)/g;
const LONG_KEY = /\b(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{32,}\b/g;

/** Return a text without folders, names, addresses and keys. */
export function redact(text: string, known: Private): string {
  let result = text;
  for (const folder of [...known.folders].sort((a, b) => b.length - a.length)) {
    result = withoutFolder(result, folder, "<folder>");
    result = withoutFolder(result, encodeURI(folder), "<folder>");
  }
  if (known.home.length > 1) {
    result = result.replaceAll(known.home, "~").replaceAll(encodeURI(known.home), "~");
  }
  result = result
    .replace(SECRET, "$1<secret>")
    .replace(CREDENTIALS, "$1<secret>@")
    .replace(EMAIL, "<email>")
    .replace(PATH, "<path>/$1")
    .replace(LONG_KEY, "<key>");
  if (known.user.length > 2) {
    result = result.replace(new RegExp(`\\b${escaped(known.user)}\\b`, "g"), "<user>");
  }
  return result;
}

/** Replace a folder and the names of the files below it; how a file's name ends is kept. */
function withoutFolder(text: string, folder: string, name: string): string {
  if (folder.length <= 1) return text;
  const below = new RegExp(`${escaped(folder)}((?:[/\\\\][^\\s"':,;()]*)?)`, "g");
  return text.replace(below, (_all, rest: string) => {
    const ending = /\.\w+$/.exec(rest)?.[0] ?? "";
    return rest.length > 1 ? `${name}/<file>${ending}` : name;
  });
}

function escaped(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}
