//! The cluster of a command whose transactions are reported if that is asked for: as traces, and if they are
//! slow.

use std::time::Duration;

use percolator_client::{Client, Options};
use percolator_telemetry::logs;
use percolator_telemetry::otlp::{Exporter, Settings};

use crate::output::Output;
use crate::retries::{Retries, may_pass};

/// How commands reach their cluster.
pub(crate) struct Connect<'a> {
    cluster: &'a str,
    slow_transaction: Option<Duration>,
    /// Sends what is left when the command ends.
    exporter: Option<Exporter>,
}

impl<'a> Connect<'a> {
    /// To the cluster with this master. A line is logged of each transaction that takes so long; traces go to where
    /// the environment says.
    pub(crate) fn new(
        cluster: &'a str,
        slow_transaction: Option<Duration>,
    ) -> anyhow::Result<Self> {
        let settings = Settings::of_environment();
        let exporter = settings.as_ref().map(Exporter::of_client).transpose()?;
        if slow_transaction.is_some() || exporter.is_some() {
            logs::init_with(logs::Settings::from("warn"));
        }
        Ok(Self {
            cluster,
            slow_transaction,
            exporter,
        })
    }

    /// A client.
    pub(crate) async fn client(
        &self,
        options: Options,
    ) -> Result<Client, percolator_client::Error> {
        let options = Options {
            slow_transaction: self.slow_transaction,
            ..options
        };
        let client = Client::connect_with(self.cluster, options).await?;
        if let Some(exporter) = &self.exporter {
            client.trace(exporter.provider());
        }
        Ok(client)
    }

    /// A client of a command that is made to go on while servers come and go: it waits for a master that isn't there
    /// yet, too.
    pub(crate) async fn retrying_client(
        &self,
        options: Options,
        request_timeout: Duration,
        output: Output,
    ) -> Result<Client, percolator_client::Error> {
        let retries = Retries::new(request_timeout);
        loop {
            match self.client(options).await {
                Err(error) if may_pass(&error) => {
                    retries.wait(error, |words| output.note(words)).await?;
                }
                connected => return connected,
            }
        }
    }
}
