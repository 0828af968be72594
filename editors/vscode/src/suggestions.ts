/** What happens to a request on its way to the server: switches before it, a stop watch around it. */

import {
  InlineCompletionTriggerKind,
  type InlineCompletionItem,
  type InlineCompletionList,
  type ProviderResult,
} from "vscode";
import type { Middleware } from "vscode-languageclient/node";

import type { KeyTimes } from "./keyTimes";

/** The token of the server's progress while the engine loads. */
const LOADING_TOKEN = "specengine-loading";

export interface SuggestionEvents {
  /** Whether a language gets suggestions by themselves now. */
  readonly isOn: (language: string) => boolean;
  /** The editor has text for a version of a document, so long after the key. */
  readonly onAnswer: (version: number, keyMs: number) => void;
  /** The engine loads: 0 to 1, and one line for people. */
  readonly onLoading: (progress: number, detail: string) => void;
}

export function suggestionMiddleware(keys: KeyTimes, events: SuggestionEvents): Middleware {
  return {
    async provideInlineCompletionItems(document, position, context, token, next) {
      const isAutomatic = context.triggerKind === InlineCompletionTriggerKind.Automatic;
      if (isAutomatic && !events.isOn(document.languageId)) return null;
      const { version } = document;
      const since = keys.before(document);
      const answer = await next(document, position, context, token);
      if (!token.isCancellationRequested && hasText(answer)) {
        events.onAnswer(version, performance.now() - since);
      }
      return answer;
    },

    // The status bar item shows it; VS Code's own line beside it would say it twice. The end goes
    // through, so that the client forgets the token.
    handleWorkDoneProgress(token, value, next) {
      if (token !== LOADING_TOKEN || value.kind === "end") next(token, value);
      else if (value.kind === "report")
        events.onLoading((value.percentage ?? 0) / 100, value.message ?? "");
    },
  };
}

function hasText(
  answer: Awaited<ProviderResult<InlineCompletionItem[] | InlineCompletionList>>,
): boolean {
  if (answer === undefined || answer === null) return false;
  return (Array.isArray(answer) ? answer : answer.items).length > 0;
}
