//! Sends the directory's commands to tablet servers.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use percolator_wire::v1;
use percolator_wire::v1::tablets_client::TabletsClient;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::convert::tablet_ref;
use crate::events::{Action, Command, Done};

/// A tablet server must answer a command within this, or it is asked again.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Connections to tablet servers, by address.
#[derive(Debug, Default)]
pub(crate) struct Channels(HashMap<String, Channel>);

impl Channels {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Those to other addresses than these go.
    pub(crate) fn keep(&mut self, known: &HashSet<&str>) {
        self.0.retain(|address, _| known.contains(&**address));
    }

    /// A connection that is made when it is first used; none to what is no address.
    pub(crate) fn of(&mut self, address: &str) -> Option<Channel> {
        if let Some(channel) = self.0.get(address) {
            return Some(channel.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}")).ok()?;
        let channel = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(COMMAND_TIMEOUT)
            .tcp_nodelay(true)
            .connect_lazy();
        self.0.insert(address.to_owned(), channel.clone());
        Some(channel)
    }
}

/// Sends a command, and returns the server's response or why it was not carried out.
pub(crate) async fn send(channel: Option<Channel>, command: &Command) -> Result<Done, String> {
    let Command {
        cluster_id,
        server,
        incarnation,
        address,
        action,
    } = command;
    let Some(channel) = channel else {
        return Err(format!("{address:?} is no address: nothing can be sent"));
    };
    let to = v1::Addressee {
        server: server.clone(),
        incarnation: *incarnation,
    };
    let asked = ask(TabletsClient::new(channel), cluster_id, to, action);
    match tokio::time::timeout(CONNECT_TIMEOUT + COMMAND_TIMEOUT, asked).await {
        Ok(result) => result.map_err(|status: Status| match status.message() {
            "" => format!("{:?} from {address}", status.code()),
            message => message.to_owned(),
        }),
        Err(_) => Err(format!("no answer from {address}")),
    }
}

async fn ask(
    mut tablets: TabletsClient<Channel>,
    cluster_id: &str,
    to: v1::Addressee,
    action: &Action,
) -> Result<Done, Status> {
    let (cluster_id, to) = (cluster_id.to_owned(), Some(to));
    match action {
        Action::Create {
            tablet,
            made,
            barrier,
        } => {
            let request = v1::CreateTabletRequest {
                cluster_id,
                tablet: Some(tablet.clone().into()),
                to,
                made: *made,
                barrier: barrier.as_u64(),
            };
            let done = tablets.create_tablet(request).await?;
            Ok(Done::of(done.into_inner().groups))
        }
        Action::Drop { tablet, table } => {
            let request = v1::DropTabletRequest {
                cluster_id,
                tablet_id: *tablet,
                to,
                table_id: *table,
            };
            let done = tablets.drop_tablet(request).await?;
            Ok(Done::of(done.into_inner().groups))
        }
        Action::Split {
            tablet,
            epoch,
            row,
            sibling,
        } => {
            let request = v1::SplitTabletRequest {
                cluster_id,
                to,
                tablet: Some(tablet_ref((*tablet, *epoch))),
                row: row.clone(),
                sibling_id: *sibling,
            };
            let done = tablets.split_tablet(request).await?.into_inner();
            Ok(done_with(done.groups, done.tablets))
        }
        Action::Import {
            tablet,
            from,
            address,
        } => {
            let request = v1::ImportTabletRequest {
                cluster_id,
                to,
                tablet: Some(tablet.clone().into()),
                from: Some(from.clone().into()),
                address: address.clone(),
            };
            let done = tablets.import_tablet(request).await?;
            Ok(Done::of(done.into_inner().groups))
        }
        Action::Merge { first, second } => {
            let request = v1::MergeTabletsRequest {
                cluster_id,
                to,
                tablet: Some(tablet_ref(*first)),
                next: Some(tablet_ref(*second)),
            };
            let done = tablets.merge_tablets(request).await?.into_inner();
            Ok(done_with(done.groups, done.tablet.into_iter().collect()))
        }
    }
}

/// Leaves out malformed tablets: the next heartbeat reports them.
fn done_with(groups: u64, tablets: Vec<v1::TabletInfo>) -> Done {
    let tablets = tablets.into_iter().map(TryFrom::try_from);
    Done {
        groups,
        tablets: tablets.filter_map(Result::ok).collect(),
    }
}
