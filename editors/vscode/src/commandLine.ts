/**
 * Command lines of Python.
 *
 * All have `-P`, or `-I` where Python may be older than 3.11: without them, it would load modules
 * from the working directory, which a folder that nobody trusts could provide.
 */

import { join } from "node:path";

export interface CommandLine {
  readonly command: string;
  readonly args: readonly string[];
}

export function versionProbe(python: string): CommandLine {
  const code = 'import importlib.metadata as m, lsp_server; print(m.version("specengine"))';
  return { command: python, args: ["-P", "-c", code] };
}

/** Fails where Python is too old, or cannot make environments. */
export function baseProbe(python: string): CommandLine {
  const code = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))";
  return { command: python, args: ["-I", "-c", code] };
}

export function languageServer(python: string): CommandLine {
  return { command: python, args: ["-P", "-m", "lsp_server.cli", "--stdio"] };
}

/** The first one is for programs; an older engine knows only the second, for people. */
export function modelLists(python: string): CommandLine[] {
  const args = ["-P", "-m", "specengine.cli", "models", "list"];
  return [
    { command: python, args: [...args, "--json"] },
    { command: python, args },
  ];
}

/** Writes the report of a trace into a file; without a trace named, of the server's usual one. */
export function tracePage(python: string, trace: string | undefined, page: string): CommandLine {
  const which = trace === undefined ? [] : [trace];
  const args = ["-P", "-m", "specengine.cli", "trace", ...which, "--html", page];
  return { command: python, args };
}

/** Return what makes an environment, installs a wheel into it, and fetches the default model. */
export function installation(
  base: string,
  folder: string,
  wheel: string,
  pipArguments: readonly string[],
): CommandLine[] {
  const python = pythonOf(folder);
  const pip = [
    "-P",
    "-m",
    "pip",
    "install",
    "--disable-pip-version-check",
    "--progress-bar",
    "off",
  ];
  return [
    { command: base, args: ["-I", "-m", "venv", "--clear", folder] },
    { command: python, args: [...pip, ...pipArguments, wheel] },
    { command: python, args: ["-P", "-m", "specengine.cli", "models", "pull"] },
  ];
}

/** Return the Python of a virtual environment. */
export function pythonOf(folder: string): string {
  return process.platform === "win32"
    ? join(folder, "Scripts", "python.exe")
    : join(folder, "bin", "python");
}

export const BASE_PYTHONS: readonly string[] =
  process.platform === "win32"
    ? ["python", "py"]
    : ["python3.13", "python3.12", "python3.11", "python3", "python"];

export const PATH_PYTHONS: readonly string[] =
  process.platform === "win32" ? ["python"] : ["python3", "python"];
