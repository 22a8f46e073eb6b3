//! Where lines come from: an editor on a terminal, or a script. A thread reads them.

use std::io::{self, BufRead};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use parking_lot::Mutex;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{CompletionType, Config, Editor};
use tokio::sync::mpsc;

use super::complete::Words;
use crate::output::Output;

/// Lines that are remembered.
const HISTORY_LINES: usize = 10_000;

/// What came of asking for a line.
pub(crate) enum Typed {
    Line(String),
    /// Ctrl-C: the line is dropped.
    Interrupted,
    End,
}

/// Asks the thread for lines.
pub(crate) struct Input {
    prompts: mpsc::Sender<String>,
    lines: mpsc::Receiver<anyhow::Result<Typed>>,
}

impl Input {
    /// Lines from standard input as they are.
    pub(crate) fn script() -> anyhow::Result<Self> {
        Self::start(|_| {
            let mut line = Vec::new();
            let read = io::stdin().lock().read_until(b'\n', &mut line);
            if read.context("cannot read standard input")? == 0 {
                return Ok(Typed::End);
            }
            let line = String::from_utf8(line)
                .context("a line is not UTF-8 text; bytes are written as \\xNN")?;
            Ok(Typed::Line(line))
        })
    }

    /// Lines that are edited on the terminal.
    pub(crate) fn terminal(
        tables: Arc<Mutex<Vec<String>>>,
        output: Output,
    ) -> anyhow::Result<Self> {
        let config = Config::builder()
            .completion_type(CompletionType::List)
            .max_history_size(HISTORY_LINES)?
            .history_ignore_space(true)
            .history_ignore_dups(true)?
            .build();
        let mut editor: Editor<Words, FileHistory> = Editor::with_config(config)?;
        editor.set_helper(Some(Words { tables }));
        let history = history_file();
        if let Some(path) = &history
            && let Err(why) = prepare(path).and_then(|()| load(&mut editor, path))
        {
            output.note(&format!("no history: {}: {why}", path.display()));
        }
        Self::start(move |prompt| match editor.readline(&prompt) {
            Ok(line) => {
                if editor.add_history_entry(&line)?
                    && let Some(path) = &history
                {
                    // Without a file the session has its history all the same.
                    let _ = editor.append_history(path);
                }
                Ok(Typed::Line(line))
            }
            Err(ReadlineError::Interrupted) => Ok(Typed::Interrupted),
            Err(ReadlineError::Eof) => Ok(Typed::End),
            Err(error) => Err(error.into()),
        })
    }

    /// Runs `read` on a thread, once for each prompt. It is left behind when the program ends.
    fn start(
        mut read: impl FnMut(String) -> anyhow::Result<Typed> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let (prompts, mut asked) = mpsc::channel(1);
        let (answer, lines) = mpsc::channel(1);
        std::thread::Builder::new()
            .name("lines".into())
            .spawn(move || {
                while let Some(prompt) = asked.blocking_recv() {
                    if answer.blocking_send(read(prompt)).is_err() {
                        return;
                    }
                }
            })
            .context("cannot start a thread that reads")?;
        Ok(Self { prompts, lines })
    }

    /// The next line.
    pub(crate) async fn next(&mut self, prompt: String) -> anyhow::Result<Typed> {
        if self.prompts.send(prompt).await.is_err() {
            return Ok(Typed::End);
        }
        self.lines.recv().await.unwrap_or(Ok(Typed::End))
    }
}

/// After the XDG base directories; a path that isn't absolute is ignored, as they say.
fn history_file() -> Option<PathBuf> {
    let variable = |name| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let state = variable("XDG_STATE_HOME")
        .or_else(|| Some(variable("HOME")?.join(".local").join("state")))?;
    Some(state.join("percolator").join("history"))
}

fn prepare(path: &std::path::Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) => std::fs::create_dir_all(folder),
        None => Ok(()),
    }
}

fn load(editor: &mut Editor<Words, FileHistory>, path: &PathBuf) -> io::Result<()> {
    match editor.load_history(path) {
        Ok(()) => Ok(()),
        Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(ReadlineError::Io(error)) => Err(error),
        Err(error) => Err(io::Error::other(error)),
    }
}
