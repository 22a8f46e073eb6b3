//! What to type when the master of a local cluster has lost its state: `percolator up` begins nothing over what servers have.

use std::path::Path;

use percolator_client::{Admin, MasterRebuild};

use crate::layout::MASTER;

/// The command that rebuilds the state of the masters at `masters` from these tablet servers.
fn command(masters: &str, tablet_servers: &[String]) -> String {
    let named = tablet_servers
        .iter()
        .map(|name| format!(" --server {name}"));
    let named: String = named.collect();
    format!("percolator -c {masters} master rebuild{named}")
}

/// What to do when the folder of a master that is alone is gone. `port`: what `up` was given; 0: any.
pub(crate) fn folder_is_missing(data_dir: &Path, port: u16, tablet_servers: &[String]) -> String {
    let masters = match port {
        0 => "HOST:PORT".to_owned(),
        port => format!("127.0.0.1:{port}"),
    };
    format!(
        "the folder of {MASTER} is missing from the cluster in {data_dir}, and what it held is in no other: bring it back, or \
         restore all of the cluster's folders as they were when it was stopped. If it is gone for good, have the master's state \
         rebuilt from the tablet servers:\n  \
         mkdir {data_dir}/{MASTER}\n  \
         percolator up --data-dir {data_dir}       with the arguments of before; it waits for the next command\n  \
         {command}       in another terminal: it shows what the state would have, and writes it with --yes",
        data_dir = data_dir.display(),
        command = command(&masters, tablet_servers),
    )
}

/// What to do when masters run that have no state.
pub(crate) fn advice(masters: &str, tablet_servers: &[String]) -> String {
    format!(
        "the master's state is lost, and the other servers have a cluster: nothing is begun over it. Bring the newest folder of the \
         master, or its register, back. If it is gone for good, type in another terminal\n  \
         {}\n\
         It shows what the state would have, and writes it with --yes",
        command(masters, tablet_servers)
    )
}

/// Whether a master answers that has no state. One that has a state refuses to say what would be rebuilt.
pub(crate) async fn is_lost(masters: &str, tablet_servers: &[String]) -> bool {
    let Ok(admin) = Admin::connect(masters) else {
        return false;
    };
    let rebuild = MasterRebuild {
        write: false,
        accept_data_loss: false,
        tablet_servers: tablet_servers.to_vec(),
    };
    admin.rebuild_master(rebuild).await.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_names_all_servers_and_the_master() {
        let servers = ["tablet-0".to_owned(), "tablet-1".to_owned()];
        let said = folder_is_missing(Path::new("/data"), 7400, &servers);
        let typed =
            "percolator -c 127.0.0.1:7400 master rebuild --server tablet-0 --server tablet-1 ";
        for part in [typed, "mkdir /data/master-0\n", "bring it back"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(folder_is_missing(Path::new("/data"), 0, &servers).contains("-c HOST:PORT "));
    }
}
