//! Real masters that share their registers: leaders are killed, stand still and go on, and hand over. Tables that were
//! answered are kept with their ids, no id comes twice, and the read barrier never goes back.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::masters::{BOUND, FakeServer, Masters, connect, name, start, table};
use percolator_client::{Admin, Client, GcChange, Options};
use percolator_wire::{leader_of, v1};

const MASTERS: usize = 3;
/// So many leaders end as planned while tables are created and settings changed.
const PLANNED_ENDS: usize = 8;
/// How leaders end, again and again.
const FAULTS: [Fault; 8] = [
    Fault::HandOver,
    Fault::Kill,
    Fault::Stop,
    Fault::HandOver,
    Fault::Stop,
    Fault::Kill,
    Fault::HandOver,
    Fault::Stop,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Fault {
    /// SIGKILL, and a new process.
    Kill,
    /// SIGSTOP, and SIGCONT after the takeover.
    Stop,
    /// SIGTERM, and a new process.
    HandOver,
}

/// Creates tables, one after the other, until it is stopped. By name: the id that was answered.
async fn create_tables(
    which: usize,
    addresses: Vec<String>,
    stop: Arc<AtomicBool>,
) -> BTreeMap<String, u32> {
    let mut created = BTreeMap::new();
    let mut address = addresses[which % MASTERS].clone();
    for number in 0.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        // By itself, so that an answer that comes late is taken for what it is.
        let name = format!("t{which}-{number}");
        let mut master = connect(&address);
        let asked = master.create_table(table(&name));
        match tokio::time::timeout(Duration::from_secs(8), asked).await {
            Ok(Ok(answer)) => {
                let table = answer.into_inner().table.unwrap();
                created.insert(name, table.id);
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            Ok(Err(status)) => {
                let leader = leader_of(&status).flatten();
                address = leader.map_or_else(
                    || addresses[number % MASTERS].clone(),
                    |leader| leader.address,
                );
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(_) => address = addresses[number % MASTERS].clone(),
        }
    }
    created
}

/// One takeover, and how long it took until another master answered.
async fn take_over(masters: &mut Masters, fault: Fault, round: usize) -> Duration {
    let leader = masters.leader(None).await;
    let began = Instant::now();
    match fault {
        Fault::Kill => masters.signal(leader, "KILL"),
        Fault::Stop => masters.stop(leader),
        Fault::HandOver => masters.signal(leader, "TERM"),
    }
    // It is asked while it stands still, and answers when it goes on.
    let late_name = format!("late-{round}");
    let late = {
        let mut master = connect(&masters.addresses[leader]);
        let request = table(&late_name);
        tokio::spawn(async move { master.create_table(request).await })
    };
    let next = masters.leader(Some(leader)).await;
    let took = began.elapsed();
    eprintln!(
        "{fault:?} of {}: {} leads after {took:?}",
        name(leader),
        name(next)
    );
    match fault {
        Fault::Stop => {
            masters.signal(leader, "CONT");
            let late = tokio::time::timeout(BOUND, late).await.unwrap().unwrap();
            let refused = late.expect_err("the old leader answered after its right had ended");
            assert!(leader_of(&refused).is_some(), "{refused}");
        }
        Fault::Kill | Fault::HandOver => masters.restart(leader).await,
    }
    took
}

#[tokio::test]
async fn tables_and_points_are_kept_over_takeovers() {
    let mut masters = Masters::start(MASTERS).await;
    let list = masters.addresses.join(",");
    let oracle = FakeServer::start(v1::Role::Oracle, "tso-0", list.clone());
    let tablets: Vec<FakeServer> = (0..2)
        .map(|number| {
            FakeServer::start(v1::Role::Tablet, &format!("tablet-{number}"), list.clone())
        })
        .collect();
    let admin = Admin::connect(&list).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let creators: Vec<_> = (0..3)
        .map(|which| {
            let addresses = masters.addresses.clone();
            tokio::spawn(create_tables(which, addresses, stop.clone()))
        })
        .collect();
    let mut took: HashMap<Fault, Vec<u128>> = HashMap::new();
    for (round, fault) in FAULTS.into_iter().enumerate() {
        let retention = Duration::from_secs(1 + round as u64);
        let change = GcChange {
            retention: Some(retention),
            ..GcChange::default()
        };
        admin.set_gc(change).await.unwrap();
        let barrier = oracle.barrier.load(Ordering::SeqCst);
        let gap = take_over(&mut masters, fault, round).await;
        took.entry(fault).or_default().push(gap.as_millis());
        // A second for the clock of a standby, and what a loaded machine takes.
        assert!(gap < Duration::from_secs(15), "{fault:?} took {gap:?}");
        let status = admin.gc_status().await.unwrap();
        assert_eq!(status.retention, retention);
        assert!(status.barrier.as_u64() >= barrier, "{status:?}");
    }
    // Collection goes on under the last leader.
    let barrier = oracle.barrier.load(Ordering::SeqCst);
    let moved = async {
        while oracle.barrier.load(Ordering::SeqCst) <= barrier {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(BOUND, moved)
        .await
        .expect("the barrier moves");
    stop.store(true, Ordering::SeqCst);
    let mut created = BTreeMap::new();
    for creator in creators {
        created.extend(creator.await.unwrap());
    }
    let client = Client::connect(&list).await.unwrap();
    let tables = client.cluster().await.unwrap().tables;
    let kept: BTreeMap<&str, u32> = tables.iter().map(|it| (&*it.name, it.id)).collect();
    assert!(
        created.len() > 50,
        "only {} tables were created",
        created.len()
    );
    for (name, id) in &created {
        assert_eq!(kept.get(&**name), Some(id), "{name}");
    }
    let ids: BTreeSet<u32> = tables.iter().map(|table| table.id).collect();
    assert_eq!(ids.len(), tables.len());
    for fake in tablets.iter().chain([&oracle]) {
        assert!(!fake.has_gone_back.load(Ordering::SeqCst));
    }
    let mut took: Vec<_> = took.into_iter().collect();
    took.sort();
    eprintln!("{} tables; takeovers in ms: {took:?}", created.len());
}

/// Asks one after the other until it is stopped. Each has to be answered.
async fn ask_on<F: Future<Output = Result<(), percolator_client::Error>>>(
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    ask: impl Fn(u64) -> F,
) {
    while !stop.load(Ordering::SeqCst) {
        let number = answered.load(Ordering::SeqCst);
        let asked = ask(number).await;
        asked.unwrap_or_else(|error| panic!("request {number}: {error}"));
        answered.store(number + 1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Rolls, drains and evictions end the leader with SIGTERM.
#[tokio::test]
async fn planned_ends_fail_no_request() {
    let mut masters = Masters::start(MASTERS).await;
    let list = masters.addresses.join(",");
    let _oracle = FakeServer::start(v1::Role::Oracle, "tso-0", list.clone());
    let _tablet = FakeServer::start(v1::Role::Tablet, "tablet-0", list.clone());
    let stop = Arc::new(AtomicBool::new(false));
    let options = Options {
        request_timeout: BOUND,
        ..Options::default()
    };
    let counts: [Arc<AtomicU64>; 4] = std::array::from_fn(|_| Arc::default());
    let mut askers = Vec::new();
    for (which, answered) in counts.iter().cloned().enumerate() {
        let client = Client::connect_with(&list, options).await.unwrap();
        let admin = Arc::new(Admin::connect(&list).unwrap());
        askers.push(tokio::spawn(ask_on(
            stop.clone(),
            answered,
            move |number| {
                let (client, admin) = (client.clone(), admin.clone());
                async move {
                    if which > 0 {
                        return client
                            .create_table(&format!("t{which}-{number}"), &[])
                            .await;
                    }
                    let change = GcChange {
                        retention: Some(Duration::from_secs(60 + number)),
                        ..GcChange::default()
                    };
                    admin.set_gc(change).await.map(drop)
                }
            },
        )));
    }
    for _ in 0..PLANNED_ENDS {
        let leader = masters.leader(None).await;
        let before = counts.each_ref().map(|count| count.load(Ordering::SeqCst));
        let go_on = || {
            counts
                .iter()
                .zip(before)
                .all(|(now, before)| now.load(Ordering::SeqCst) > before + 2)
        };
        let went_on = tokio::time::timeout(BOUND, async {
            while !go_on() && !askers.iter().any(|asker| asker.is_finished()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        went_on.await.expect("requests are answered");
        masters.signal(leader, "TERM");
        masters.leader(Some(leader)).await;
        masters.restart(leader).await;
    }
    stop.store(true, Ordering::SeqCst);
    for asker in askers {
        asker.await.expect("each request is answered");
    }
}

/// A master that has a register, and is the only one, doesn't wait for its own dead process.
#[tokio::test]
async fn a_master_takes_over_from_its_own_dead_process() {
    let folder = tempfile::tempdir().unwrap();
    let (mut process, address) = start(folder.path(), 0, "127.0.0.1:0").await;
    let client = Client::connect(&address).await;
    let cluster_id = client.unwrap().cluster_id().await.unwrap();
    process.kill().await.unwrap();
    let (_process, address) = start(folder.path(), 0, &address).await;
    let began = Instant::now();
    let client = Client::connect(&address).await.unwrap();
    assert_eq!(client.cluster_id().await.unwrap(), cluster_id);
    eprintln!("it served after {:?}", began.elapsed());
}

/// As one address stands for all masters, that of a service of Kubernetes.
#[tokio::test]
async fn a_client_that_knows_a_standby_alone_finds_the_leader() {
    let mut masters = Masters::start(MASTERS).await;
    let leader = masters.leader(None).await;
    let standby = (leader + 1) % MASTERS;
    let client = Client::connect(&masters.addresses[standby]).await.unwrap();
    let cluster_id = client.cluster_id().await.unwrap();
    masters.processes[leader].kill().await.unwrap();
    let now = masters.leader(Some(leader)).await;
    // The standby that it knows either leads by now, or names the leader.
    assert_eq!(client.cluster_id().await.unwrap(), cluster_id);
    assert_eq!(client.cluster().await.unwrap().master, name(now));
}

/// What the leader says of the other masters, once that is so.
async fn others(
    masters: &Masters,
    leader: usize,
    is_so: impl Fn(&v1::DirectoryResponse) -> bool,
) -> v1::DirectoryResponse {
    let mut master = connect(&masters.addresses[leader]);
    let mut last = None;
    let found = async {
        loop {
            let asked = master.directory(v1::DirectoryRequest::default()).await;
            let said = asked.unwrap().into_inner();
            if is_so(&said) {
                return said;
            }
            last = Some(said);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let found = tokio::time::timeout(BOUND, found).await;
    found.unwrap_or_else(|_| panic!("the last answer: {last:?}"))
}

fn listed(said: &v1::DirectoryResponse) -> Vec<(&str, bool)> {
    let standbys = said.standby_masters.iter();
    standbys.map(|it| (&*it.server, it.alive)).collect()
}

#[tokio::test]
async fn the_leader_names_its_standbys_and_the_leader_before() {
    let mut masters = Masters::start(MASTERS).await;
    let leader = masters.leader(None).await;
    let [first, second] = [1, 2].map(|next| (leader + next) % MASTERS);
    let mut both = [name(first), name(second)];
    both.sort();
    let are_there = [(&*both[0], true), (&*both[1], true)];
    let said = others(&masters, leader, |said| listed(said) == are_there).await;
    let addresses: BTreeSet<&str> = said.standby_masters.iter().map(|it| &*it.address).collect();
    let expected = [first, second].map(|number| &*masters.addresses[number]);
    assert_eq!(addresses, BTreeSet::from(expected));

    // One that is asked to end says so, and one that is killed is missing.
    masters.signal(second, "TERM");
    masters.processes[second].wait().await.unwrap();
    let left = name(first);
    others(&masters, leader, |said| listed(said) == [(&*left, true)]).await;
    masters.restart(second).await;
    others(&masters, leader, |said| listed(said) == are_there).await;
    masters.processes[leader].kill().await.unwrap();
    let next = masters.leader(Some(leader)).await;
    let (before, third) = (name(leader), name(first + second - next));
    let mut expected = [(&*before, false), (&*third, true)];
    expected.sort_unstable();
    let said = others(&masters, next, |said| listed(said) == expected).await;
    assert!(said.master_takeover_ms.is_some(), "{said:?}");
}

/// The leader stands still while a table is being created.
#[tokio::test]
async fn a_request_to_a_leader_that_stands_still_goes_to_the_next_one() {
    let masters = Masters::start(2).await;
    let list = masters.addresses.join(",");
    let _oracle = FakeServer::start(v1::Role::Oracle, "tso-0", list.clone());
    let _tablet = FakeServer::start(v1::Role::Tablet, "tablet-0", list.clone());
    let leader = masters.leader(None).await;
    let options = Options {
        request_timeout: BOUND,
        ..Options::default()
    };
    let client = Client::connect_with(&list, options).await.unwrap();
    client.create_table("before", &[]).await.unwrap();
    masters.stop(leader);
    let began = Instant::now();
    client.create_table("after", &[]).await.unwrap();
    eprintln!("a table is created {:?} after SIGSTOP", began.elapsed());
    assert_eq!(client.cluster().await.unwrap().master, name(1 - leader));
}
