//! `percolator master`: what a person has to decide for the master, for administrators.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use percolator_client::{Admin, MasterRebuild, RebuiltMaster, RebuiltServer, RebuiltTable};
use serde_json::{Value, json};

use crate::answered;
use crate::output::{Output, columns};

/// The master: rebuild its state after that was lost.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  percolator master rebuild --server tablet-0 --server tablet-1
  percolator master rebuild --servers-from names.txt --yes")]
pub(crate) enum Command {
    /// Rebuild the state of a master that has lost its folder or register, from what the tablet servers report.
    ///
    /// Bring the folder or register back instead, if there is any copy of it that is the newest. Otherwise start the master
    /// without --new-cluster, and all other servers: it refuses them, and begins nothing over what they have. Then name all
    /// tablet servers of the cluster. The list is the authority: rows that none of them has are gone. Without --yes the command
    /// shows what the state would have, and what is in the way.
    ///
    /// Exit code 7: a problem prevents the rebuild, or rows are lost and --accept-data-loss is missing.
    #[command(after_help = "\
Examples:
  percolator master rebuild --server tablet-0 --server tablet-1         show what would be rebuilt
  percolator master rebuild --server tablet-0 --server tablet-1 --yes   rebuild it
  percolator master rebuild --servers-from names.txt --yes              a name a line
  kubectl exec demo-master-0 -- percolator master rebuild --server demo-tablet-0 --server demo-tablet-1")]
    Rebuild(RebuildArgs),
}

/// What to rebuild from.
#[derive(Debug, clap::Args)]
pub(crate) struct RebuildArgs {
    /// The name of a tablet server; say it for each of the cluster.
    #[arg(
        long = "server",
        value_name = "NAME",
        required_unless_present = "servers_from"
    )]
    servers: Vec<String>,
    /// A file with a name a line; - is standard input.
    #[arg(long, value_name = "FILE")]
    servers_from: Option<PathBuf>,
    /// Go on although rows are lost: empty tablets take their place, and transactions that were decided there are rolled back
    /// in other tables.
    #[arg(long)]
    accept_data_loss: bool,
    /// Write the state, and let the master go on with it.
    #[arg(long)]
    yes: bool,
}

pub(crate) async fn run(
    cluster: &str,
    command: Command,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let Command::Rebuild(args) = command;
    let rebuild = MasterRebuild {
        write: args.yes,
        accept_data_loss: args.accept_data_loss,
        tablet_servers: args.names()?,
    };
    let rebuilt = Admin::connect(cluster)?.rebuild_master(rebuild).await?;
    output.result(&text(&rebuilt), &json(&rebuilt))?;
    let in_the_way =
        !rebuilt.problems.is_empty() || !(rebuilt.losses.is_empty() || args.accept_data_loss);
    output.note(match (rebuilt.written, in_the_way) {
        (true, _) => "the state was written: the master continues with it",
        (false, false) => "nothing was changed: --yes writes this state",
        (false, true) if rebuilt.problems.is_empty() => {
            "nothing was changed: --accept-data-loss writes the state without the lost rows"
        }
        (false, true) => "nothing was changed: solve the problems first",
    });
    Ok(answered(!in_the_way))
}

impl RebuildArgs {
    fn names(&self) -> anyhow::Result<Vec<String>> {
        let mut names = self.servers.clone();
        if let Some(path) = &self.servers_from {
            let read = if path.as_os_str() == "-" {
                std::io::read_to_string(std::io::stdin())
            } else {
                std::fs::read_to_string(path)
            };
            let text = read.with_context(|| format!("cannot read {}", path.display()))?;
            let lines = text.lines().map(str::trim);
            names.extend(lines.filter(|line| !line.is_empty()).map(String::from));
        }
        Ok(names)
    }
}

fn text(rebuilt: &RebuiltMaster) -> String {
    let row = |cells: [String; 4]| cells.to_vec();
    let heads = |cells: [&str; 4]| cells.map(String::from).to_vec();
    let mut servers = vec![heads(["SERVER", "ROLE", "ADDRESS", "TABLETS"])];
    servers.extend(rebuilt.servers.iter().map(|server| {
        row([
            server.name.clone(),
            role(server).to_owned(),
            match &*server.address {
                "" => "-".to_owned(),
                address => address.to_owned(),
            },
            server.tablets.to_string(),
        ])
    }));
    let mut tables = vec![heads(["TABLE", "ID", "TABLETS", "STATE"])];
    tables.extend(rebuilt.tables.iter().map(|table| {
        row([
            table.name.clone(),
            table.id.to_string(),
            table.tablets.to_string(),
            state(table),
        ])
    }));
    let cluster = match &*rebuilt.cluster_id {
        "" => "no cluster".to_owned(),
        id => format!("cluster {id}"),
    };
    let set = crate::gc::settings(rebuilt.retention, rebuilt.hold_max, rebuilt.paused);
    let mut lines = vec![
        cluster,
        columns(&servers),
        columns(&tables),
        format!(
            "barrier {}, safe point {}, resolved {}; {set}; new tables from {} on",
            rebuilt.barrier, rebuilt.safe_point, rebuilt.resolved, rebuilt.next_table_id
        ),
    ];
    lines.extend(rebuilt.losses.iter().map(|loss| format!("lost: {loss}")));
    let problems = rebuilt.problems.iter();
    lines.extend(problems.map(|problem| format!("problem: {problem}")));
    lines.join("\n")
}

fn role(server: &RebuiltServer) -> &'static str {
    if server.is_oracle { "oracle" } else { "tablet" }
}

fn state(table: &RebuiltTable) -> String {
    match (table.deleting, table.gaps) {
        (true, 0) => "deleting".to_owned(),
        (false, 0) => "ready".to_owned(),
        (_, gaps) => format!("{gaps} range(s) of rows lost"),
    }
}

fn json(rebuilt: &RebuiltMaster) -> Value {
    let servers = rebuilt.servers.iter().map(|server| {
        json!({
            "server": server.name,
            "role": role(server),
            "address": server.address,
            "tablets": server.tablets,
        })
    });
    let tables = rebuilt.tables.iter().map(|table| {
        json!({
            "table": table.name,
            "id": table.id,
            "deleting": table.deleting,
            "tablets": table.tablets,
            "gaps": table.gaps,
        })
    });
    let millis = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    json!({
        "cluster_id": rebuilt.cluster_id,
        "servers": servers.collect::<Vec<_>>(),
        "tables": tables.collect::<Vec<_>>(),
        "barrier": rebuilt.barrier.to_string(),
        "safe_point": rebuilt.safe_point.to_string(),
        "resolved": rebuilt.resolved.to_string(),
        "retention_ms": rebuilt.retention.map(millis),
        "hold_ms_max": rebuilt.hold_max.map(millis),
        "paused": rebuilt.paused,
        "next_table_id": rebuilt.next_table_id,
        "problems": rebuilt.problems,
        "losses": rebuilt.losses,
        "written": rebuilt.written,
    })
}

#[cfg(test)]
mod tests {
    use percolator_client::Timestamp;

    use super::*;

    #[test]
    fn what_would_be_rebuilt_and_what_is_in_the_way_is_shown() {
        let server = |name: &str, is_oracle, address: &str, tablets| RebuiltServer {
            name: name.into(),
            is_oracle,
            address: address.into(),
            tablets,
        };
        let table = |id, name: &str, deleting, gaps| RebuiltTable {
            id,
            name: name.into(),
            deleting,
            tablets: 2,
            gaps,
        };
        let rebuilt = RebuiltMaster {
            cluster_id: "c0ffee".into(),
            servers: vec![
                server("tablet-0", false, "tablet-0:7402", 5),
                server("tablet-1", false, "", 0),
                server("tso-0", true, "tso-0:7401", 0),
            ],
            tables: vec![
                table(7, "accounts", false, 0),
                table(8, "old", true, 0),
                table(9, "half", false, 1),
            ],
            barrier: Timestamp::from_u64(30),
            safe_point: Timestamp::from_u64(20),
            resolved: Timestamp::from_u64(10),
            retention: Some(std::time::Duration::from_secs(7_200)),
            hold_max: None,
            paused: true,
            next_table_id: 65_537,
            problems: vec!["no heartbeat in the last 10 s: tablet-1".into()],
            losses: vec!["no server has the rows [\"m\"..) of table half (9)".into()],
            written: false,
        };
        let shown = "\
cluster c0ffee
SERVER     ROLE     ADDRESS         TABLETS
tablet-0   tablet   tablet-0:7402   5
tablet-1   tablet   -               0
tso-0      oracle   tso-0:7401      0
TABLE      ID   TABLETS   STATE
accounts   7    2         ready
old        8    2         deleting
half       9    2         1 range(s) of rows lost
barrier 30, safe point 20, resolved 10; retention 2h, paused; new tables from 65537 on
lost: no server has the rows [\"m\"..) of table half (9)
problem: no heartbeat in the last 10 s: tablet-1";
        assert_eq!(text(&rebuilt), shown);
        assert_eq!(json(&rebuilt)["barrier"], "30");
    }
}
