//! Transactions through the proxy, over gRPC and over JSON, against a real cluster.

use crate::support;
use std::time::Duration;

use crate::support::http::{Http, json};
use crate::support::sessions::{Proxy, Session, connect, is, reason, refused, with_table};
use crate::support::{Cluster, block_on, wait_for};
use percolator_client::Client;
use percolator_proxy::{Options, Server};
use percolator_wire::proxy::v1;
use percolator_wire::proxy::v1::outcome_response::Outcome;
use tokio::sync::oneshot;
use tonic::Code;
use tonic_types::StatusExt as _;

#[test]
fn a_transaction_over_all_methods() {
    let cluster = with_table();
    block_on(async {
        let grpc = connect(&cluster.proxy()).await;
        let mut session = Session::begin(&grpc).await;
        assert!(session.token.contains(".proxy-0."), "{}", session.token);
        assert_eq!(session.get("a").await.unwrap(), None);
        for row in ["a", "b", "z"] {
            session.put(row, row).await.unwrap();
        }
        session.delete("b").await.unwrap();
        session.get_for_update("y").await.unwrap();
        // Its own writes are there, for others they are not.
        assert_eq!(session.get("a").await.unwrap().as_deref(), Some("a"));
        assert_eq!(session.rows().await, ["a", "z"]);
        let mut other = Session::begin(&grpc).await;
        assert_eq!(other.get("a").await.unwrap(), None);
        assert_eq!(session.outcome().await.unwrap(), (Outcome::Pending, 0));
        let commit_ts = session.commit().await.unwrap();
        assert!(commit_ts > session.start_ts);
        assert_eq!(other.get("a").await.unwrap(), None);
        other.rollback().await.unwrap();
        // A lost answer may be asked for.
        assert_eq!(session.commit().await.unwrap(), commit_ts);
        let committed = (Outcome::Committed, commit_ts);
        assert_eq!(session.outcome().await.unwrap(), committed);
        let ended = is(Code::FailedPrecondition, "SESSION_ENDED");
        assert_eq!(refused(session.get("a").await), ended);
        assert_eq!(refused(session.rollback().await), ended);
        let rolled_back = (Outcome::RolledBack, 0);
        assert_eq!(other.outcome().await.unwrap(), rolled_back);
        other.rollback().await.unwrap();
        assert_eq!(refused(other.commit().await), ended);

        let mut later = Session::begin(&grpc).await;
        let cells = ["z", "b", "a"].map(|row| v1::CellName {
            table: "t".into(),
            row: row.into(),
            column: "c".into(),
        });
        let request = v1::BatchGetRequest {
            session: later.token.clone(),
            cells: cells.to_vec(),
        };
        let values = later.grpc.batch_get(request).await.unwrap().into_inner();
        let values: Vec<_> = values.values.into_iter().map(|it| it.value).collect();
        assert_eq!(values, [Some("z".into()), None, Some("a".into())]);
        let mut first = later.scan(1).await.unwrap();
        assert_eq!(first.message().await.unwrap().unwrap().cells.len(), 1);
        // Nothing was written: it is as if it had happened at its snapshot.
        assert_eq!(later.commit().await.unwrap(), later.start_ts);

        let mut before = later.grpc.clone();
        let snapshot = commit_ts - 1;
        let begun = before
            .begin(v1::BeginRequest {
                snapshot,
                cells: Vec::new(),
            })
            .await
            .unwrap();
        let mut before = Session {
            grpc: before,
            token: begun.into_inner().session,
            start_ts: snapshot,
        };
        assert_eq!(before.get("a").await.unwrap(), None);
        let invalid = is(Code::InvalidArgument, "INVALID");
        assert_eq!(refused(before.put("a", "x").await), invalid);
    });
}

#[test]
fn a_conflict_aborts_and_says_on_which_cell() {
    let cluster = with_table();
    block_on(async {
        let grpc = connect(&cluster.proxy()).await;
        let (mut first, mut second) = (Session::begin(&grpc).await, Session::begin(&grpc).await);
        first.put("a", "1").await.unwrap();
        second.put("a", "2").await.unwrap();
        first.commit().await.unwrap();
        let status = second.commit().await.unwrap_err();
        assert_eq!(reason(&status), is(Code::Aborted, "CONFLICT"));
        let details = status.get_error_details();
        let metadata = &details.error_info().unwrap().metadata;
        assert_eq!(metadata["conflict"], "committed");
        assert!(metadata["cell"].ends_with("/a:c"), "{metadata:?}");
        // Asked again it is aborted, too.
        let aborted = is(Code::Aborted, "SESSION_ABORTED");
        assert_eq!(refused(second.commit().await), aborted);
        let rolled_back = (Outcome::RolledBack, 0);
        assert_eq!(second.outcome().await.unwrap(), rolled_back);
        let mut third = Session::begin(&grpc).await;
        assert_eq!(third.get("a").await.unwrap().as_deref(), Some("1"));
    });
}

#[test]
fn wrong_calls_are_told_what_is_wrong() {
    let cluster = with_table();
    block_on(async {
        let mut grpc = connect(&cluster.proxy()).await;
        let session = Session::begin(&grpc).await;
        let invalid = is(Code::InvalidArgument, "INVALID");
        let cell = session.cell("a");
        let wrong = v1::GetRequest {
            table: "nowhere".into(),
            ..cell.clone()
        };
        let status = grpc.get(wrong).await.unwrap_err();
        assert_eq!(reason(&status), is(Code::NotFound, "UNKNOWN_TABLE"));
        let put = v1::PutRequest {
            session: session.token.clone(),
            table: "nowhere".into(),
            row: "a".into(),
            ..v1::PutRequest::default()
        };
        let unknown = is(Code::NotFound, "UNKNOWN_TABLE");
        assert_eq!(refused(grpc.put(put.clone()).await), unknown);
        let no_row = v1::PutRequest {
            table: "t".into(),
            row: Default::default(),
            ..put
        };
        assert_eq!(refused(grpc.put(no_row).await), invalid);
        let both = v1::ScanRequest {
            session: session.token.clone(),
            table: "t".into(),
            start: "a".into(),
            prefix: "a".into(),
            ..v1::ScanRequest::default()
        };
        assert_eq!(refused(grpc.scan(both).await.map(drop)), invalid);
        let many = v1::BatchGetRequest {
            session: session.token.clone(),
            cells: vec![v1::CellName::default(); 257],
        };
        assert_eq!(refused(grpc.batch_get(many).await), invalid);
        // More than a message may have.
        let large = session.clone().put("a", vec![0; 6 << 20]).await;
        assert_eq!(refused(large), invalid);
        // None of that has ended it; others have no access to it.
        session.clone().put("a", "1").await.unwrap();
        let secret = session.token.rsplit_once('.').unwrap().1;
        let other_secret = session.token.replace(secret, &"0".repeat(32));
        let other_proxy = session.token.replace("proxy-0", "proxy-1");
        let reasons = [
            ("", invalid.clone()),
            ("no token", invalid),
            (
                &other_secret,
                is(Code::FailedPrecondition, "SESSION_UNKNOWN"),
            ),
            (&other_proxy, is(Code::FailedPrecondition, "OTHER_PROXY")),
        ];
        for (token, expected) in reasons {
            let get = v1::GetRequest {
                session: token.to_owned(),
                ..cell.clone()
            };
            assert_eq!(refused(grpc.get(get).await), expected, "{token}");
            let session = token.to_owned();
            let writes = Vec::new();
            let commit = grpc.commit(v1::CommitRequest { session, writes }).await;
            assert_eq!(refused(commit), expected, "{token}");
        }
    });
}

#[test]
fn a_session_that_comes_back_late_is_told_that_it_was_rolled_back() {
    let cluster = with_table();
    let proxy = Proxy::start(&cluster, |options| {
        options.limits.idle_max = Duration::from_millis(200);
        options.limits.session_max = Duration::from_millis(1500);
    });
    let (mut idle, mut busy) = block_on(async {
        let grpc = connect(&proxy.address).await;
        let mut idle = Session::begin(&grpc).await;
        idle.put("a", "1").await.unwrap();
        (idle, Session::begin(&grpc).await)
    });
    assert_eq!(
        proxy.shows("percolator_proxy_sessions_begun_total"),
        Some(2.0)
    );
    wait_for("a session to expire", || {
        let ended = proxy.shows("percolator_proxy_sessions_ended_total{end=\"idle\"}")?;
        (ended >= 1.0).then_some(())
    });
    assert_eq!(proxy.shows("percolator_proxy_buffered_bytes"), Some(0.0));
    block_on(async {
        // The connections were made on another runtime.
        let grpc = connect(&proxy.address).await;
        (idle.grpc, busy.grpc) = (grpc.clone(), grpc.clone());
        let expired = is(Code::Aborted, "SESSION_EXPIRED");
        assert_eq!(refused(idle.put("a", "1").await), expired);
        let status = idle.commit().await.unwrap_err();
        assert_eq!(reason(&status), expired);
        let details = status.get_error_details();
        assert_eq!(details.error_info().unwrap().metadata["limit"], "idle");
        idle.rollback().await.unwrap();
        let mut busy = Session::begin(&grpc).await;
        let status = loop {
            if let Err(status) = busy.get("a").await {
                break status;
            }
        };
        assert_eq!(reason(&status), expired);
        let details = status.get_error_details();
        assert_eq!(details.error_info().unwrap().metadata["limit"], "total");
        let client = Client::connect(&cluster.master).await.unwrap();
        let txn = client.begin().await.unwrap();
        assert_eq!(txn.get("t", "a", "c").await.unwrap(), None);
    });
}

#[test]
fn a_scan_that_nobody_reads_holds_nobody_else_up_and_ends_with_its_session() {
    let cluster = with_table();
    let rows: String = (0..6000)
        .map(|number| {
            format!(
                "{{\"id\":\"{number:06}\",\"c\":\"{}\"}}\n",
                "x".repeat(1000)
            )
        })
        .collect();
    let import = ["import", "--table", "t", "--key", "id", "-"];
    cluster.run_with(&import, &rows).ok();
    let proxy = Proxy::start(&cluster, |options| {
        options.limits.scans_max = 1;
    });
    block_on(async {
        let grpc = connect(&proxy.address).await;
        let mut slow = Session::begin(&grpc).await;
        let mut chunks = slow.scan(0).await.unwrap();
        chunks.message().await.unwrap().expect("a chunk");
        // On the same connection.
        let mut other = Session::begin(&grpc).await;
        other.put("a", "1").await.unwrap();
        let refused_scan = refused(other.scan(0).await.map(drop));
        assert_eq!(refused_scan, is(Code::ResourceExhausted, "SCANS"));
        other.commit().await.unwrap();
        slow.rollback().await.unwrap();
        let status = loop {
            match chunks.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the scan has come to its end"),
                Err(status) => break status,
            }
        };
        let ended = is(Code::FailedPrecondition, "SESSION_ENDED");
        assert_eq!(reason(&status), ended);
        let mut next = Session::begin(&grpc).await;
        assert_eq!(next.rows().await.len(), 2 * 6000 + 1);
        next.commit().await.unwrap();
    });
}

#[test]
fn a_proxy_that_stops_lets_sessions_end_and_rolls_the_others_back() {
    let cluster = with_table();
    let mut proxy = Proxy::start(&cluster, |options| {
        options.grace = Duration::from_secs(2);
    });
    let address = proxy.address.clone();
    block_on(async {
        let mut grpc = connect(&address).await;
        let (mut ends, mut stays) = (Session::begin(&grpc).await, Session::begin(&grpc).await);
        ends.put("a", "1").await.unwrap();
        stays.put("b", "1").await.unwrap();
        proxy.tell_to_stop();
        let stopping = is(Code::Unavailable, "STOPPING");
        loop {
            match grpc.begin(v1::BeginRequest::default()).await {
                Ok(begun) => {
                    let session = begun.into_inner().session;
                    grpc.rollback(v1::RollbackRequest { session })
                        .await
                        .unwrap();
                }
                Err(status) => break assert_eq!(reason(&status), stopping),
            }
        }
        ends.commit().await.unwrap();
        proxy.ended();
        let client = Client::connect(&cluster.master).await.unwrap();
        let txn = client.begin().await.unwrap();
        assert_eq!(txn.get("t", "a", "c").await.unwrap(), Some("1".into()));
        assert_eq!(txn.get("t", "b", "c").await.unwrap(), None);
        // It is not in the way of others.
        txn.put("t", "b", "c", "2").unwrap();
        txn.commit().await.unwrap();
    });
}

#[test]
fn a_proxy_waits_for_the_cluster_and_refuses_an_address_that_is_none() {
    let options = Options::new("127.0.0.1:1");
    block_on(async {
        let server = Server::bind(options).expect("bound");
        let address = server.address().to_string();
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async { drop(stopped.await) };
        let asks = async {
            let mut grpc = connect(&address).await;
            let begun = grpc.begin(v1::BeginRequest::default()).await;
            let unavailable = is(Code::Unavailable, "UNAVAILABLE");
            assert_eq!(refused(begun), unavailable);
            drop(stop);
        };
        let (served, ()) = tokio::join!(server.run(stopped), asks);
        served.expect("it ends well");
        let failed = Server::bind(Options::new("no address"))
            .err()
            .expect("refused");
        assert!(failed.to_string().contains("no address"), "{failed}");
    });
}

#[test]
fn a_proxy_that_dies_is_started_again_and_has_none_of_its_sessions() {
    let cluster = Cluster::processes();
    cluster.run(&["table", "create", "t"]).ok();
    let address = cluster.proxy();
    let mut session = block_on(async {
        let mut session = Session::begin(&connect(&address).await).await;
        session.put("a", "1").await.unwrap();
        session
    });
    cluster.kill("proxy-0");
    assert_eq!(cluster.proxy(), address);
    wait_for("the proxy to be ready again", || {
        let metrics = cluster.metrics_address("proxy-0");
        let ready = block_on(percolator_telemetry::endpoint::get(&metrics, "/readyz"));
        ready.is_ok_and(|ready| ready.status == 200).then_some(())
    });
    block_on(async {
        let grpc = connect(&address).await;
        session.grpc = grpc.clone();
        // Whether it was committed is more than this proxy knows.
        let unknown = is(Code::FailedPrecondition, "SESSION_UNKNOWN");
        assert_eq!(refused(session.commit().await), unknown);
        let mut next = Session::begin(&grpc).await;
        assert_eq!(next.get("a").await.unwrap(), None);
        next.put("a", "2").await.unwrap();
        next.commit().await.unwrap();
    });
}

#[test]
fn a_cluster_may_have_no_proxy() {
    let up = |flags: &[&str]| {
        let command = ["--", "sh", "-c", "echo $PERCOLATOR_PROXY"];
        support::percolator(&[&["up", "--ephemeral", "-q"], flags, &command].concat()).ok()
    };
    assert_eq!(up(&["--no-proxy"]), "\n");
    assert!(up(&[]).starts_with("127.0.0.1:"));
}

#[test]
fn the_same_over_json() {
    let cluster = with_table();
    let http = Http::new(&cluster.proxy());
    let (status, begun) = http.post("begin", "");
    assert_eq!(status, 200, "{begun}");
    let session = begun["session"].as_str().unwrap().to_owned();
    let call = |method: &str, fields: &str| {
        let fields = if fields.is_empty() {
            ""
        } else {
            &format!(",{fields}")
        };
        http.post(method, &format!("{{\"session\":\"{session}\"{fields}}}"))
    };
    let cell = |row: &str| format!("\"table\":\"t\",\"row\":\"{row}\",\"column\":\"c\"");
    let put = format!("{},\"value\":\"\u{e4}\"", cell("a"));
    assert_eq!(call("put", &put), (200, json("{}")));
    let put = "\"table\":\"t\",\"row_base64\":\"/wA=\",\"column\":\"c\",\"value_base64\":\"/w==\"";
    assert_eq!(call("put", put), (200, json("{}")));
    let got = call("get", &cell("a"));
    assert_eq!(got, (200, json("{\"value\":\"\u{e4}\"}")));
    let got = call("get_for_update", &cell("b"));
    assert_eq!(got, (200, json("{\"value\":null}")));
    let cells = format!("\"cells\":[{{{}}},{{{}}}]", cell("b"), cell("a"));
    let got = call("batch_get", &cells);
    let values = "{\"values\":[{\"value\":null},{\"value\":\"\u{e4}\"}]}";
    assert_eq!(got, (200, json(values)));
    call("put", &format!("{},\"value\":\"\"", cell("gone")));
    assert_eq!(call("delete", &cell("gone")).0, 200);
    let scan = format!("{{\"session\":\"{session}\",\"table\":\"t\"}}");
    let (status, lines) = http.post_text("scan", &scan);
    assert_eq!(status, 200);
    let lines: Vec<_> = lines.lines().map(json).collect();
    let expected = [
        "{\"row\":\"a\",\"column\":\"c\",\"value\":\"\u{e4}\"}",
        "{\"row_base64\":\"/wA=\",\"column\":\"c\",\"value_base64\":\"/w==\"}",
    ];
    assert_eq!(lines, expected.map(json));
    let (_, outcome) = call("outcome", "");
    assert_eq!(outcome, json("{\"outcome\":\"pending\"}"));
    let (status, committed) = call("commit", "");
    assert_eq!(status, 200, "{committed}");
    assert_eq!(call("commit", ""), (200, committed.clone()));
    let (_, outcome) = call("outcome", "");
    assert_eq!(outcome["outcome"], "committed");
    assert_eq!(outcome["commit_ts"], committed["commit_ts"]);
    let (status, refused) = call("rollback", "");
    assert_eq!(status, 400);
    let details = &refused["error"]["details"][0];
    assert_eq!(details["reason"], "SESSION_ENDED");
    assert_eq!(refused["error"]["status"], "FAILED_PRECONDITION");
    let made = "{\"table\":\"made\",\"split_at\":[{\"row\":\"m\"},{\"row_base64\":\"dA==\"}]}";
    assert_eq!(http.post("create_table", made), (200, json("{}")));
    assert_eq!(cluster.starts("made"), ["", "m", "t"]);
    let (status, again) = http.post("create_table", made);
    assert_eq!(
        (status, &again["error"]["status"]),
        (409, &"ALREADY_EXISTS".into())
    );
    let snapshot = committed["commit_ts"].as_str().unwrap();
    let (status, _) = http.post("begin", &format!("{{\"snapshot\":\"{snapshot}\"}}"));
    assert_eq!(status, 200);
}

#[test]
fn wrong_json_is_told_what_is_wrong() {
    let cluster = with_table();
    let http = Http::new(&cluster.proxy());
    let begun = http.post("begin", "{}").1;
    let session = begun["session"].as_str().unwrap();
    let cell = format!("\"session\":\"{session}\",\"table\":\"t\",\"row\":\"a\",\"column\":\"c\"");
    for (method, body, status, says) in [
        ("get", "{".to_owned(), 400, "not JSON"),
        ("get", "[]".to_owned(), 400, "not a JSON object"),
        ("get", "{}".to_owned(), 400, "session is missing"),
        (
            "get",
            format!("{{{cell},\"clumn\":1}}"),
            400,
            "no field clumn",
        ),
        (
            "put",
            format!("{{{cell}}}"),
            400,
            "value, or value_base64, is missing",
        ),
        (
            "put",
            format!("{{{cell},\"value\":1}}"),
            400,
            "not a string",
        ),
        ("begin", "{\"snapshot\":7}".to_owned(), 400, "in a string"),
        ("begun", "{}".to_owned(), 404, "openapi.json"),
        ("create_table", "{\"table\":\"A\"}".to_owned(), 400, "table"),
        (
            "create_table",
            "{\"table\":\"a\",\"split_at\":[{\"rwo\":\"m\"}]}".to_owned(),
            400,
            "split_at[0]: row, or row_base64, is missing; there are also: rwo",
        ),
    ] {
        let (found, error) = http.post(method, &body);
        assert_eq!(found, status, "{error}");
        let message = error["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(says), "{says}: {error}");
    }
    let (status, described) = http.get("/v1/openapi.json");
    assert_eq!(status, 200);
    assert_eq!(described, percolator_proxy::OPENAPI);
    assert_eq!(http.get("/v1/begin").0, 405);
    for path in ["/", "/begin", "/v2/begin"] {
        let (status, answer) = http.get(path);
        let code = json(&answer)["error"]["code"].clone();
        assert_eq!((status, code), (404, 404.into()), "{path}: {answer}");
    }
}
