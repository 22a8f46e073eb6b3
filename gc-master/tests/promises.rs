//! Real masters whose registers go away: they go on while all of them are up, and lose no state that only their folders have.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::masters::{BOUND, FakeServer, Masters, connect, name, table};
use percolator_client::{Admin, Client, GcChange};
use percolator_protocol::election::Leadership;
use percolator_register::{FolderRegister, Register};
use percolator_wire::v1;
use tokio::time::Instant;

/// Longer than a leader's right lasts after its last swap, and than the lease of its servers.
const OUTAGE: Duration = Duration::from_secs(12);

/// Two masters, of which number 0 leads with the promises of number 1, with an oracle and a tablet server.
struct Pair {
    masters: Masters,
    _oracle: FakeServer,
    tablet: FakeServer,
    /// By name: the id that was answered.
    created: BTreeMap<String, u32>,
}

impl Pair {
    async fn start() -> Self {
        let masters = Masters::start(2).await;
        let list = masters.addresses.join(",");
        let pair = Self {
            _oracle: FakeServer::start(v1::Role::Oracle, "tso-0", list.clone()),
            tablet: FakeServer::start(v1::Role::Tablet, "tablet-0", list),
            masters,
            created: BTreeMap::new(),
        };
        assert_eq!(pair.masters.leader(None).await, 0);
        pair.wait_for_value(|value| value.promisers.len() == 1)
            .await;
        pair
    }

    fn register(&self) -> PathBuf {
        self.masters.folder.path().join("register")
    }

    async fn wait_for_value(&self, is_it: impl Fn(&Leadership) -> bool) {
        let register = FolderRegister::new(self.register().join("master"));
        let deadline = Instant::now() + BOUND;
        loop {
            let found = register.load().await.ok().flatten();
            let value = found.map(|found| Leadership::decode(&found.value));
            if let Some(Ok(value)) = &value
                && is_it(value)
            {
                return;
            }
            assert!(Instant::now() < deadline, "the register has {value:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn take_registers_away(&self) {
        std::fs::rename(self.register(), self.register().with_extension("away")).unwrap();
    }

    fn bring_registers_back(&self) {
        std::fs::rename(self.register().with_extension("away"), self.register()).unwrap();
    }

    /// The barrier that the tablet server was told.
    fn barrier(&self) -> u64 {
        self.tablet.barrier.load(Ordering::SeqCst)
    }

    async fn create(&mut self, to: usize, name: &str) {
        let mut master = connect(&self.masters.addresses[to]);
        let asked = tokio::time::timeout(BOUND, master.create_table(table(name))).await;
        let answer = asked.expect("an answer in time").unwrap().into_inner();
        self.created
            .insert(name.to_owned(), answer.table.unwrap().id);
    }

    /// The same after a time in which no heartbeat was answered: the tablet server is down until its next one.
    async fn create_when_up(&mut self, to: usize, name: &str) {
        let deadline = Instant::now() + BOUND;
        loop {
            let mut master = connect(&self.masters.addresses[to]);
            let asked = tokio::time::timeout(BOUND, master.create_table(table(name))).await;
            match asked.expect("an answer in time") {
                Ok(answer) => {
                    let id = answer.into_inner().table.unwrap().id;
                    self.created.insert(name.to_owned(), id);
                    return;
                }
                Err(status) => {
                    let is_down = status.message().contains("no tablet server is up");
                    assert!(is_down && Instant::now() < deadline, "{status}");
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The tables that were created, with their ids and no other ones, by this master.
    async fn check_tables(&self, master: usize) {
        let client = Client::connect(&self.masters.addresses[master]).await;
        let cluster = client.unwrap().cluster().await.unwrap();
        assert_eq!(cluster.master, name(master));
        let found = cluster.tables.into_iter().map(|it| (it.name, it.id));
        assert_eq!(found.collect::<BTreeMap<_, _>>(), self.created);
    }

    /// Waits until this master, whose right has ended, refuses requests. One that came before may wait for its state.
    async fn wait_for_refusal(&self, of: usize) {
        let refused = async {
            loop {
                let mut master = connect(&self.masters.addresses[of]);
                let asked = master.directory(v1::DirectoryRequest::default());
                let asked = tokio::time::timeout(Duration::from_millis(500), asked).await;
                if let Ok(Err(status)) = asked
                    && status.message().contains("its register has not answered")
                {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let refused = tokio::time::timeout(BOUND, refused).await;
        refused.expect("it refuses, and says why");
    }
}

/// A client that renews its lease.
fn session() -> v1::SessionRequest {
    let owner = v1::Owner {
        host: "here".to_owned(),
        process: 1,
        application: "test".to_owned(),
        label: String::new(),
    };
    v1::SessionRequest {
        session: 7,
        owner: Some(owner),
        floor: 0,
        transactions: Vec::new(),
        unnamed: 0,
    }
}

#[tokio::test]
async fn while_all_masters_are_up_registers_that_are_away_cost_nothing() {
    let mut pair = Pair::start().await;
    pair.create(0, "before").await;
    let admin = Admin::connect(&pair.masters.addresses[0]).unwrap();
    let retention = Some(Duration::from_secs(1));
    let change = GcChange {
        retention,
        ..GcChange::default()
    };
    admin.set_gc(change).await.unwrap();
    pair.take_registers_away();
    // Longer than the leader's right.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let barrier = pair.barrier();
    let until = Instant::now() + OUTAGE;
    let mut master = connect(&pair.masters.addresses[0]);
    let mut number = 0;
    while Instant::now() < until {
        // It is asked all the time, and never refuses.
        let asked = master.directory(v1::DirectoryRequest::default());
        let asked = tokio::time::timeout(BOUND, asked).await;
        asked.expect("an answer in time").unwrap();
        let asked = tokio::time::timeout(BOUND, master.session(session())).await;
        asked.expect("an answer in time").unwrap();
        pair.create(0, &format!("t{number}")).await;
        number += 1;
    }
    assert!(number > 5, "only {number} tables");
    // Heartbeats were answered all the time, and what they say is durable before.
    assert!(pair.barrier() > barrier);

    // Nobody promises any more.
    pair.masters.signal(1, "KILL");
    pair.wait_for_refusal(0).await;
    // One that comes back with its folder does, although it can't read the register.
    pair.masters.restart(1).await;
    assert_eq!(pair.masters.leader(Some(1)).await, 0);
    pair.create_when_up(0, "again").await;
    pair.masters.signal(1, "KILL");
    pair.wait_for_refusal(0).await;
    pair.bring_registers_back();
    assert_eq!(pair.masters.leader(Some(1)).await, 0);
    pair.check_tables(0).await;
    pair.create_when_up(0, "after").await;

    // What was decided meanwhile is in the register now: without the folder of the one that led, the other one goes on with it.
    pair.masters.restart(1).await;
    pair.wait_for_value(|value| value.promisers.len() == 1)
        .await;
    pair.masters.signal(0, "TERM");
    assert_eq!(pair.masters.leader(Some(0)).await, 1);
    pair.check_tables(1).await;
}

#[tokio::test]
async fn a_takeover_goes_on_from_a_state_that_only_folders_have() {
    let mut pair = Pair::start().await;
    pair.create(0, "before").await;
    pair.take_registers_away();
    pair.create(0, "first").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    // A busy machine may have left a heartbeat unanswered meanwhile; that none is, is another test's.
    pair.create_when_up(0, "last").await;
    pair.masters.signal(0, "KILL");
    pair.bring_registers_back();
    assert_eq!(pair.masters.leader(Some(0)).await, 1);
    pair.check_tables(1).await;
    pair.create_when_up(1, "next").await;
    pair.check_tables(1).await;
}

/// It stores no planned end while only folders have its newest state.
#[tokio::test]
async fn a_planned_end_without_the_register_loses_nothing() {
    let mut pair = Pair::start().await;
    pair.take_registers_away();
    pair.create(0, "last").await;
    pair.masters.signal(0, "TERM");
    pair.masters.processes[0].wait().await.unwrap();
    pair.bring_registers_back();
    assert_eq!(pair.masters.leader(Some(0)).await, 1);
    pair.check_tables(1).await;
}
