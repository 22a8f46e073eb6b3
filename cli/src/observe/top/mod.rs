//! `percolator top`: the cluster on a terminal, as it is now and was a moment ago.

mod draw;
mod load;
mod scroll;
mod state;

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use percolator_client::{Admin, Client};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;

use super::metrics::{MetricsSource, Places};
use super::status;
use super::survey::Survey;
use crate::errors::Usage;
use crate::output::{Format, Output};
use state::{Sample, Top};

/// How long the terminal is asked for a key at a time.
const KEY_WITHIN: Duration = Duration::from_millis(100);

/// Watch the cluster on the whole terminal: servers, load, tablets, points, and what isn't well.
///
/// Rates and latencies come from the servers' metrics, where these are reached; without them it shows what the master
/// knows, and says what is missing. Latencies are bounds of buckets. Keys: q quits; the arrows, PgUp, PgDn,
/// Home and End move in the list of servers, or of tablets, and Tab goes to the other one; Enter looks into the chosen
/// server, Esc goes back; s sorts tablets by table, server, load or garbage.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  percolator top
  percolator top --once -o json | jq .load
  percolator -c 127.0.0.1:7400 top --metrics tablet-0=127.0.0.1:9090     through kubectl port-forward")]
pub(crate) struct Args {
    /// Print one look, of between two scrapes, and end; with -o json.
    #[arg(long)]
    once: bool,
    /// Between two looks.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = humantime::parse_duration)]
    interval: Duration,
    #[command(flatten)]
    places: MetricsSource,
    /// How long the master and the oracle may take to answer.
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = humantime::parse_duration)]
    request_timeout: Duration,
}

/// Who looks at the cluster.
struct Looker {
    client: Client,
    admin: Admin,
    /// Those that are known without the master.
    places: Places,
    /// Those that it has named last.
    named: Mutex<BTreeMap<String, String>>,
    began: Instant,
}

impl Looker {
    async fn look(&self) -> Sample {
        let survey = Survey::take(&self.client, &self.admin).await;
        let places = {
            let mut named = self.named.lock();
            if let Ok(survey) = &survey {
                named.clone_from(&survey.metrics);
            }
            self.places.clone().with(&named)
        };
        let pages = places.pages().await;
        Sample {
            at: self.began.elapsed(),
            survey: survey.map_err(|error| format!("{error:#}")),
            pages,
        }
    }
}

pub(crate) async fn run(cluster: &str, args: Args, output: Output) -> anyhow::Result<ExitCode> {
    if args.once && output.format != Format::Json {
        return Err(
            Usage("--once prints JSON: add -o json, or take `percolator status`".into()).into(),
        );
    }
    if !args.once && !std::io::stdout().is_terminal() {
        return Err(Usage("top draws on a terminal; elsewhere take --once -o json".into()).into());
    }
    let (client, admin) = status::connect(cluster, args.request_timeout).await?;
    let looker = Looker {
        client,
        admin,
        places: args.places.find(cluster),
        named: Mutex::default(),
        began: Instant::now(),
    };
    let mut top = Top::default();
    if args.once {
        top.take(looker.look().await);
        tokio::time::sleep(args.interval).await;
        top.take(looker.look().await);
        if let Some(why) = &top.failure {
            return Err(percolator_client::Error::Unavailable(why.clone()).into());
        }
        output.line(&top.json().to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    // Whatever ends it, also a panic, the terminal is as it was before.
    let mut terminal = ratatui::try_init()?;
    let ended = watch(&mut terminal, &mut top, &looker, args.interval).await;
    ratatui::try_restore()?;
    ended.map(|()| ExitCode::SUCCESS)
}

async fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    top: &mut Top,
    looker: &Looker,
    interval: Duration,
) -> anyhow::Result<()> {
    let mut keys = keys();
    let mut stop = Box::pin(percolator_server::signals::shutdown());
    let mut look: Pin<Box<dyn Future<Output = Sample> + '_>> = Box::pin(looker.look());
    loop {
        terminal.draw(|frame| draw::draw(frame, top))?;
        tokio::select! {
            () = &mut stop => return Ok(()),
            pressed = keys.recv() => match pressed {
                Some(Some(key)) if top.key(key) => return Ok(()),
                // A key, or another size of the terminal: drawn anew.
                Some(_) => {}
                None => return Ok(()),
            },
            seen = &mut look => {
                top.take(seen);
                look = Box::pin(async move {
                    tokio::time::sleep(interval).await;
                    looker.look().await
                });
            }
        }
    }
}

/// What is pressed; `None`: something else has happened to the terminal. Ends with the terminal.
fn keys() -> mpsc::UnboundedReceiver<Option<KeyCode>> {
    let (sender, keys) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while !sender.is_closed() {
            let happened = match event::poll(KEY_WITHIN) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(error) => Err(error),
            };
            let told = match happened {
                Ok(Event::Key(key)) if key.kind != KeyEventKind::Press => continue,
                Ok(Event::Key(key)) => {
                    let ends = key.modifiers.contains(KeyModifiers::CONTROL);
                    match (ends, key.code) {
                        (true, KeyCode::Char('c')) => Some(KeyCode::Char('q')),
                        (_, code) => Some(code),
                    }
                }
                Ok(_) => None,
                Err(_) => return,
            };
            if sender.send(told).is_err() {
                return;
            }
        }
    });
    keys
}
