//! Several writes of a session in one call, by themselves and along with the commit.

use crate::support::block_on;
use crate::support::http::{Http, json};
use crate::support::sessions::{Proxy, Session, connect, is, refused, with_table};
use percolator_wire::proxy::v1;
use percolator_wire::proxy::v1::cell_write::Change;
use percolator_wire::proxy::v1::outcome_response::Outcome;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

fn write(row: &str, change: Option<Change>) -> v1::CellWrite {
    v1::CellWrite {
        table: "t".into(),
        row: row.to_owned().into(),
        column: "c".into(),
        change,
    }
}

fn put(row: &str, value: &str) -> v1::CellWrite {
    write(row, Some(Change::Put(value.to_owned().into())))
}

fn delete(row: &str) -> v1::CellWrite {
    write(row, Some(Change::Delete(true)))
}

/// The number of the write that an error is about.
fn number(status: &Status) -> Option<String> {
    let details = status.get_error_details();
    let info = details.error_info().expect("an ErrorInfo");
    info.metadata.get("write").cloned()
}

#[test]
fn writes_take_effect_in_their_order_and_with_the_commit() {
    let cluster = with_table();
    block_on(async {
        let grpc = connect(&cluster.proxy()).await;
        let mut session = Session::begin(&grpc).await;
        let writes = vec![put("a", "1"), put("b", "1"), delete("a"), put("z", "1")];
        session.write(writes).await.unwrap();
        assert_eq!(session.rows().await, ["b", "z"]);
        let last = vec![put("b", "2"), delete("z"), put("a", "3"), put("b", "3")];
        let commit_ts = session.commit_with(last.clone()).await.unwrap();
        // Sent again it writes nothing more, whatever it has.
        assert_eq!(session.commit_with(last).await.unwrap(), commit_ts);
        let other = vec![put("b", "4")];
        assert_eq!(session.commit_with(other).await.unwrap(), commit_ts);
        assert_eq!(session.commit().await.unwrap(), commit_ts);
        let mut later = Session::begin(&grpc).await;
        assert_eq!(later.rows().await, ["a", "b"]);
        assert_eq!(later.get("b").await.unwrap().as_deref(), Some("3"));
        // A call without writes is none.
        later.write(Vec::new()).await.unwrap();
        assert_eq!(later.commit().await.unwrap(), later.start_ts);
    });
}

#[test]
fn a_commit_that_comes_many_times_at_once_is_carried_out_once() {
    let cluster = with_table();
    block_on(async {
        let grpc = connect(&cluster.proxy()).await;
        for round in 0..20 {
            let session = Session::begin(&grpc).await;
            // The last write of a cell counts, whichever copy it comes with.
            let others = (0..200).map(|row| put(&format!("b{row}"), "1"));
            let (old, new) = (put("a", "old"), put("a", &format!("{round}")));
            let writes: Vec<_> = [old].into_iter().chain(others).chain([new]).collect();
            let calls = (0..8).map(|_| {
                let (mut session, writes) = (session.clone(), writes.clone());
                tokio::spawn(async move { session.commit_with(writes).await })
            });
            let calls: Vec<_> = calls.collect();
            let mut committed = Vec::new();
            for call in calls {
                match call.await.unwrap() {
                    Ok(commit_ts) => committed.push(commit_ts),
                    refused_with => {
                        let committing = is(Code::Unavailable, "COMMITTING");
                        assert_eq!(refused(refused_with), committing);
                    }
                }
            }
            committed.dedup();
            assert_eq!(committed.len(), 1, "{committed:?}");
            let mut later = Session::begin(&grpc).await;
            let found = later.get("a").await.unwrap();
            assert_eq!(found, Some(format!("{round}")));
        }
    });
}

#[test]
fn a_write_that_is_refused_is_named_and_the_commit_is_not_begun() {
    let cluster = with_table();
    let few = Proxy::start(&cluster, |options| options.limits.session_bytes_max = 2_000);
    block_on(async {
        let grpc = connect(&few.address).await;
        let mut session = Session::begin(&grpc).await;
        let elsewhere = v1::CellWrite {
            table: "elsewhere".into(),
            ..put("b", "1")
        };
        let too_long = "x".repeat(5_000);
        let invalid = is(Code::InvalidArgument, "INVALID");
        for (wrong, expected) in [
            (elsewhere, is(Code::NotFound, "UNKNOWN_TABLE")),
            (put("", "1"), invalid.clone()),
            (write("b", None), invalid.clone()),
            (write("b", Some(Change::Delete(false))), invalid.clone()),
            (
                put("b", &too_long),
                is(Code::ResourceExhausted, "SESSION_BYTES"),
            ),
        ] {
            let writes = vec![put("a", "1"), wrong, put("c", "1")];
            let status = session.write(writes.clone()).await.unwrap_err();
            assert_eq!(number(&status).as_deref(), Some("1"), "{status:?}");
            assert_eq!(refused(Err::<(), _>(status)), expected);
            assert_eq!(refused(session.commit_with(writes).await), expected);
            let outcome = session.outcome().await.unwrap();
            assert_eq!(outcome, (Outcome::Pending, 0));
        }
        let many = (0..257).map(|row| put(&format!("{row}"), "")).collect();
        assert_eq!(refused(session.write(many).await), invalid);
        // Those before the one that was refused are written.
        assert_eq!(session.rows().await, ["a"]);
        session.commit_with(vec![put("b", "1")]).await.unwrap();
        let mut later = Session::begin(&grpc).await;
        assert_eq!(later.rows().await, ["a", "b"]);
    });
}

#[test]
fn cells_are_read_with_the_beginning_or_nothing_begins() {
    let cluster = with_table();
    let proxy = Proxy::start(&cluster, |_| {});
    let cell = |table: &str, row: &str| v1::CellName {
        table: table.to_owned(),
        row: row.to_owned().into(),
        column: "c".into(),
    };
    let begin = |cells: Vec<v1::CellName>, snapshot| v1::BeginRequest { snapshot, cells };
    block_on(async {
        let mut grpc = connect(&proxy.address).await;
        let mut session = Session::begin(&grpc).await;
        session
            .commit_with(vec![put("a", "1"), put("z", "2")])
            .await
            .unwrap();
        let cells = vec![cell("t", "z"), cell("t", "b"), cell("t", "a")];
        let begun = grpc
            .begin(begin(cells.clone(), 0))
            .await
            .unwrap()
            .into_inner();
        let values: Vec<_> = begun.values.into_iter().map(|it| it.value).collect();
        assert_eq!(values, [Some("2".into()), None, Some("1".into())]);
        let before = begin(cells, session.start_ts);
        let begun = grpc.begin(before).await.unwrap().into_inner();
        assert!(
            begun.values.iter().all(|it| it.value.is_none()),
            "{begun:?}"
        );
    });
    let open = proxy.shows("percolator_proxy_sessions");
    block_on(async {
        let mut grpc = connect(&proxy.address).await;
        let wrong = vec![cell("t", "a"), cell("elsewhere", "a")];
        let unknown = is(Code::NotFound, "UNKNOWN_TABLE");
        assert_eq!(refused(grpc.begin(begin(wrong, 0)).await), unknown);
        let many = vec![cell("t", "a"); 257];
        let invalid = is(Code::InvalidArgument, "INVALID");
        assert_eq!(refused(grpc.begin(begin(many, 0)).await), invalid);
    });
    assert_eq!(proxy.shows("percolator_proxy_sessions"), open);
    let http = Http::new(&proxy.address);
    let cells = r#"[{"table":"t","row":"b","column":"c"},{"table":"t","row":"a","column":"c"}]"#;
    let (status, begun) = http.post("begin", &format!("{{\"cells\":{cells}}}"));
    assert_eq!(status, 200, "{begun}");
    assert_eq!(begun["values"], json(r#"[{"value":null},{"value":"1"}]"#));
}

#[test]
fn the_same_over_json() {
    let cluster = with_table();
    let http = Http::new(&cluster.proxy());
    let begun = http.post("begin", "").1;
    let session = begun["session"].as_str().expect("a session").to_owned();
    let call = |method: &str, fields: &str| {
        http.post(method, &format!("{{\"session\":\"{session}\",{fields}}}"))
    };
    let cell = |row: &str, change: &str| {
        format!("{{\"table\":\"t\",\"row\":\"{row}\",\"column\":\"c\",{change}}}")
    };
    let list = |writes: &[String]| format!("\"writes\":[{}]", writes.join(","));
    let a = cell("a", "\"value\":\"1\"");
    let b = cell("b", "\"value_base64\":\"/w==\"");
    let written = call("write", &list(&[a.clone(), b.clone()]));
    assert_eq!(written, (200, json("{}")));
    for (wrong, says) in [
        (
            cell("c", "\"delete\":false"),
            "writes[1]: it has a value, or",
        ),
        (
            cell("c", "\"value\":\"\",\"delete\":true"),
            "and not two of them",
        ),
        (cell("c", "\"put\":\"\""), "it has a value, or"),
        ("7".to_owned(), "writes[1]: it is not an object"),
        (
            cell("c", "\"value\":\"\",\"valu\":\"\""),
            "writes[1]: this call has no field valu",
        ),
    ] {
        for method in ["write", "commit"] {
            let (status, error) = call(method, &list(&[a.clone(), wrong.clone()]));
            let message = error["error"]["message"].as_str().unwrap_or_default();
            assert!(status == 400 && message.contains(says), "{says}: {error}");
        }
    }
    let (_, error) = call("commit", "\"write\":[]");
    let message = error["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("no field write"), "{error}");
    let gone = cell("b", "\"delete\":true");
    let (status, committed) = call("commit", &list(&[gone]));
    assert_eq!(status, 200, "{committed}");
    assert_eq!(call("commit", &list(&[b])), (200, committed));
    let scanned = cluster.run(&["scan", "t", "-o", "json"]).ok();
    assert_eq!(scanned.lines().count(), 1, "{scanned}");
}
