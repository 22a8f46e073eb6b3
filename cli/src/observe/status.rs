//! `percolator status`: one page that says how a cluster is.

use std::process::ExitCode;
use std::time::Duration;

use percolator_client::{Admin, Client, Options};

use super::metrics::MetricsSource;
use super::survey::Survey;
use super::{page, problems};
use crate::answered;
use crate::output::Output;

/// Say on one page how the cluster is, and what to do about each thing that isn't well.
///
/// The master knows of servers, tables and garbage. Of full disks, clocks and servers that aren't ready their metrics
/// tell, where these are reached from here: the master says where they are. What isn't reached is named as not looked at.
///
/// Ends with 0 where all is well, with 7 where something isn't, with 5 where the master isn't reached.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  percolator status
  percolator status -o json | jq .problems
  percolator status --metrics tablet-0=127.0.0.1:9090     through kubectl port-forward
  until percolator status -q > /dev/null; do sleep 1; done")]
pub(crate) struct Args {
    /// How long the master and the oracle may take to answer.
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = humantime::parse_duration)]
    request_timeout: Duration,
    #[command(flatten)]
    places: MetricsSource,
}

pub(crate) async fn run(cluster: &str, args: Args, output: Output) -> anyhow::Result<ExitCode> {
    let (client, admin) = connect(cluster, args.request_timeout).await?;
    let mut survey = Survey::take(&client, &admin).await?;
    let places = args.places.find(cluster).with(&survey.metrics);
    let pages = places.reached().await;
    survey.add_shown(&pages);
    let problems = problems::find(&survey, &pages);
    let unseen = problems::unseen(&survey, &pages);
    output.result(
        &page::text(&survey, &problems, &unseen),
        &page::json(&survey, &problems, &unseen),
    )?;
    Ok(answered(problems.is_empty()))
}

pub(crate) async fn connect(
    cluster: &str,
    request_timeout: Duration,
) -> anyhow::Result<(Client, Admin)> {
    let options = Options {
        request_timeout,
        ..Options::default()
    };
    let client = Client::connect_with(cluster, options).await?;
    Ok((client, Admin::connect(cluster)?))
}
