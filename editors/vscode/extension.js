// Starts `tilec lsp` for kernel files, and again when the settings change.

"use strict";

const { commands, window, workspace } = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

async function start() {
  const settings = workspace.getConfiguration("tilec");
  const server = { command: settings.get("path"), args: ["lsp", ...settings.get("arguments")] };
  client = new LanguageClient("tilec", "tilec", server, { documentSelector: [{ language: "tilec" }] });
  try {
    await client.start();
  } catch (error) {
    client = undefined;
    window.showErrorMessage(
      `${server.command} lsp does not start: ${error.message}. It needs pip install '.[lsp]' in tilec's folder; the setting ` +
        "tilec.path says where the command is."
    );
  }
}

async function stop() {
  const ended = client;
  client = undefined;
  if (ended !== undefined) {
    await ended.stop();
  }
}

async function restart() {
  await stop();
  await start();
}

async function activate(context) {
  context.subscriptions.push(
    commands.registerCommand("tilec.restart", restart),
    workspace.onDidChangeConfiguration((change) => {
      if (change.affectsConfiguration("tilec")) {
        restart();
      }
    })
  );
  await start();
}

module.exports = { activate, deactivate: stop };
