//! What clients of a proxy may have at a time, and that it is counted as long as the proxy has it.

use crate::support::http::{Http, json};
use crate::support::server::Stopped;
use crate::support::sessions::{Proxy, Session, connect, is, refused, with_table};
use crate::support::{Cluster, block_on, wait_for};
use percolator_client::{Client, Error};
use percolator_wire::proxy::v1;
use percolator_wire::proxy::v1::cell_write::Change;
use tokio::task::JoinSet;
use tonic::Code;

#[test]
fn limits_refuse_what_is_too_much_and_nothing_else() {
    let cluster = with_table();
    let proxy = Proxy::start(&cluster, |options| {
        options.limits.sessions_max = 6;
        options.limits.session_bytes_max = 3000;
        options.limits.bytes_max = 8000;
    });
    block_on(async {
        let mut grpc = connect(&proxy.address).await;
        let mut first = Session::begin(&grpc).await;
        let mut second = Session::begin(&grpc).await;
        let mut third = Session::begin(&grpc).await;
        let exhausted = |reason| is(Code::ResourceExhausted, reason);
        let fourth = grpc.begin(v1::BeginRequest::default()).await;
        assert_eq!(refused(fourth), exhausted("SESSIONS"));
        first.put("a", vec![b'x'; 1500]).await.unwrap();
        // The same cell again takes no more.
        first.put("a", vec![b'y'; 800]).await.unwrap();
        first.put("b", vec![b'x'; 1500]).await.unwrap();
        let more = first.put("c", vec![b'x'; 2000]).await;
        assert_eq!(refused(more), exhausted("SESSION_BYTES"));
        second.put("b", vec![b'x'; 1800]).await.unwrap();
        let more = third.put("c", vec![b'x'; 1000]).await;
        assert_eq!(refused(more), exhausted("BYTES"));
        // What was refused has ended nothing, and what ends makes room.
        first.commit().await.unwrap();
        third.put("c", vec![b'x'; 1000]).await.unwrap();
        third.commit().await.unwrap();
        Session::begin(&grpc).await;
    });
}

#[test]
fn what_is_received_is_bounded_whatever_it_is_for() {
    let cluster = with_table();
    let proxy = Proxy::start(&cluster, |options| {
        options.transit_bytes_max = 200_000;
    });
    let exhausted = is(Code::ResourceExhausted, "BYTES");
    block_on(async {
        let grpc = connect(&proxy.address).await;
        let mut session = Session::begin(&grpc).await;
        let too_much = session.put("a", vec![b'x'; 150_000]).await;
        assert_eq!(refused(too_much), exhausted);
        let mut no_session = session.clone();
        no_session.token = "none".into();
        let too_much = no_session.put("a", vec![b'x'; 150_000]).await;
        assert_eq!(refused(too_much), exhausted);
        // What was refused is gone, and so is what was carried out.
        for _ in 0..3 {
            session.put("a", vec![b'x'; 60_000]).await.unwrap();
        }
        session.commit().await.unwrap();
    });
    let http = Http::new(&proxy.address);
    let value = |bytes: usize| format!("{{\"value\":\"{}\"}}", "x".repeat(bytes));
    let (status, error) = http.post("put", &value(250_000));
    assert_eq!(status, 429, "{error}");
    assert_eq!(error["error"]["details"][0]["reason"], "BYTES");
    assert_eq!(http.post("put", &value(60_000)).0, 400);
}

fn write(table: &str, row: &str, change: Change) -> v1::CellWrite {
    v1::CellWrite {
        table: table.into(),
        row: row.to_owned().into(),
        column: "c".into(),
        change: Some(change),
    }
}

/// A commit waits for the master, which says whether there is such a table.
#[test]
fn a_request_counts_until_its_writes_are_buffered() {
    let cluster = Cluster::processes();
    let proxy = Proxy::start(&cluster, |options| {
        options.transit_bytes_max = 200_000;
    });
    let exhausted = is(Code::ResourceExhausted, "BYTES");
    block_on(async {
        let grpc = connect(&proxy.address).await;
        let mut sessions = Vec::new();
        for _ in 0..4 {
            sessions.push(Session::begin(&grpc).await);
        }
        let stopped = Stopped::new(&cluster, "master-0");
        let mut commits = JoinSet::new();
        for mut session in sessions {
            let put = Change::Put(vec![b'x'; 60_000].into());
            let writes = vec![write("unknown", "a", put)];
            commits.spawn(async move { refused(session.commit_with(writes).await) });
        }
        let first = commits.join_next().await.expect("a commit");
        assert_eq!(first.expect("no panic"), exhausted);
        drop(stopped);
        let unknown = is(Code::NotFound, "UNKNOWN_TABLE");
        let others = commits.join_all().await;
        assert!(others.contains(&unknown), "{others:?}");
        for other in others {
            assert!(other == unknown || other == exhausted, "{other:?}");
        }
    });
    wait_for("nothing to be on its way", || {
        let bytes = proxy.shows("percolator_proxy_transit_bytes")?;
        (bytes == 0.0).then_some(())
    });
}

/// It has a copy of them.
#[test]
fn what_a_scan_holds_of_own_writes_counts() {
    let cluster = with_table();
    let proxy = Proxy::start(&cluster, |options| {
        options.transit_bytes_max = 100_000;
    });
    block_on(async {
        let grpc = connect(&proxy.address).await;
        let mut session = Session::begin(&grpc).await;
        for part in 0..4 {
            let rows = (0..256).map(|number| format!("{part}-{number}"));
            let deletes = rows.map(|row| write("t", &row, Change::Delete(true)));
            session.write(deletes.collect()).await.unwrap();
        }
        let scan = refused(session.scan(0).await.map(drop));
        assert_eq!(scan, is(Code::ResourceExhausted, "BYTES"));
        // In another range there are none of them.
        let elsewhere = v1::ScanRequest {
            session: session.token.clone(),
            table: "t".into(),
            prefix: "x".into(),
            ..v1::ScanRequest::default()
        };
        session.grpc.scan(elsewhere).await.unwrap();
        session.commit().await.unwrap();
    });
}

/// Each byte of the value has six in the text.
#[test]
fn an_answer_in_json_counts_with_its_escapes() {
    let cluster = with_table();
    let proxy = Proxy::start(&cluster, |options| {
        options.transit_bytes_max = 500_000;
    });
    block_on(async {
        let mut session = Session::begin(&connect(&proxy.address).await).await;
        session.put("a", vec![0; 100_000]).await.unwrap();
        session.commit().await.unwrap();
        let mut later = Session::begin(&session.grpc).await;
        let value = later.get("a").await.unwrap();
        assert_eq!(value.map(|value| value.len()), Some(100_000));
        later.rollback().await.unwrap();
    });
    let http = Http::new(&proxy.address);
    let cell = r#""table":"t","row":"a","column":"c""#;
    let begin = http.post("begin", &format!("{{\"cells\":[{{{cell}}}]}}"));
    assert_eq!(proxy.shows("percolator_proxy_sessions"), Some(0.0));
    let begun = http.post("begin", "{}").1;
    let session = format!("\"session\":{}", begun["session"]);
    let get = http.post("get", &format!("{{{session},{cell}}}"));
    let cells = format!("{{{session},\"cells\":[{{{cell}}}]}}");
    let batch_get = http.post("batch_get", &cells);
    let scan = format!("{{{session},\"table\":\"t\"}}");
    let scan = http.post_text("scan", &scan).1;
    for (status, error) in [begin, get, batch_get, (429, json(&scan))] {
        assert_eq!(status, 429, "{error}");
        assert_eq!(error["error"]["details"][0]["reason"], "BYTES");
    }
}

/// Those who count them end a call before it has them all.
#[test]
fn values_are_counted_as_they_arrive() {
    const VALUE_BYTES: usize = 3 << 20;
    let cluster = with_table();
    block_on(async {
        let client = Client::connect(&cluster.master).await.expect("connected");
        let rows: Vec<String> = (0..8).map(|number| format!("row {number}")).collect();
        for row in &rows {
            let txn = client.begin().await.expect("begun");
            txn.put("t", row, "c", vec![b'x'; VALUE_BYTES]).unwrap();
            txn.commit().await.expect("committed");
        }
        let txn = client.begin().await.expect("begun");
        let cells: Vec<_> = rows
            .iter()
            .map(|row| ("t", row.as_bytes(), &b"c"[..]))
            .collect();
        let mut counted = 0;
        let read = txn.batch_get_counted(&cells, |bytes| {
            counted += bytes;
            if counted < VALUE_BYTES {
                return Ok(());
            }
            Err(Error::application("there is no room"))
        });
        let read = read.await.map(drop);
        assert!(matches!(read, Err(Error::Application(_))), "{read:?}");
        assert!(counted < rows.len() * VALUE_BYTES, "{counted}");
    });
}
