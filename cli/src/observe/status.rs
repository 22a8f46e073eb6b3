//! `percolator status`: one page that says how a cluster is.

use std::process::ExitCode;
use std::time::Duration;

use percolator_client::{Admin, Client, Options};

use super::survey::Survey;
use super::{page, problems};
use crate::answered;
use crate::output::Output;

/// Say on one page how the cluster is, and what to do about each thing that isn't well.
///
/// Ends with 0 where all is well, with 7 where something isn't, with 5 where the master isn't reached.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  percolator status
  percolator status -o json | jq .problems
  until percolator status -q > /dev/null; do sleep 1; done")]
pub(crate) struct Args {
    /// How long the master and the oracle may take to answer.
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = humantime::parse_duration)]
    patience: Duration,
}

pub(crate) async fn run(cluster: &str, args: Args, output: Output) -> anyhow::Result<ExitCode> {
    let (client, admin) = connect(cluster, args.patience).await?;
    let survey = Survey::take(&client, &admin, cluster).await?;
    let problems = problems::find(&survey);
    output.result(
        &page::text(&survey, &problems),
        &page::json(&survey, &problems),
    )?;
    Ok(answered(problems.is_empty()))
}

pub(crate) async fn connect(cluster: &str, patience: Duration) -> anyhow::Result<(Client, Admin)> {
    let options = Options {
        patience,
        ..Options::default()
    };
    let client = Client::connect_with(cluster, options).await?;
    Ok((client, Admin::connect(cluster)?))
}
