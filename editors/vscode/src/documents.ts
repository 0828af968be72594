/** Which documents get suggestions: those that somebody writes, and not panels that VS Code fills. */

import type { TextDocument } from "vscode";

const SCHEMES: readonly string[] = ["file", "untitled"];

export const DOCUMENT_SELECTOR = SCHEMES.map((scheme) => ({ scheme }));

/** Return the language of a document that gets suggestions, else undefined. */
export function servedLanguage(document: TextDocument | undefined): string | undefined {
  return document !== undefined && SCHEMES.includes(document.uri.scheme)
    ? document.languageId
    : undefined;
}
