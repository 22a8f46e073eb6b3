//! What a collector is sent of a transaction, from a real cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::collector::{Collector, Span};
use crate::support::http::Http;
use crate::support::sessions::shown;
use crate::support::{Cluster, block_on, output_of, wait_for};
use opentelemetry::trace::{Link, SpanKind, TraceId, TraceState, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SamplingDecision, SamplingResult, SdkTracerProvider, ShouldSample};
use percolator_client::{Client, Error, Options};
use percolator_telemetry::otlp::{Exporter, Settings};
use serde_json::json;

/// What no span may tell.
const ROW: &str = "a-row-that-nobody-sees";
const VALUE: &str = "a-value-that-nobody-sees";

/// A transfer between two accounts that two servers have, in a trace of its own.
async fn transfer<P>(master: &str, provider: &P) -> Result<String, Error>
where
    P: TracerProvider<Tracer = opentelemetry_sdk::trace::SdkTracer>,
{
    let client = Client::connect(master).await?;
    assert!(client.trace(provider));
    let txn = client.begin().await?;
    let start_ts = txn.start_ts().to_string();
    for row in ["a-first", ROW] {
        txn.get("bank", row, "balance").await?;
        txn.put("bank", row, "balance", VALUE)?;
    }
    txn.commit().await?;
    client.settle().await;
    Ok(start_ts)
}

/// Samples nothing, and counts the spans that somebody wants to make.
#[derive(Clone, Debug, Default)]
struct Nothing(Arc<AtomicUsize>);

impl ShouldSample for Nothing {
    fn should_sample(
        &self,
        _: Option<&Context>,
        _: TraceId,
        _: &str,
        _: &SpanKind,
        _: &[KeyValue],
        _: &[Link],
    ) -> SamplingResult {
        self.0.fetch_add(1, Ordering::Relaxed);
        SamplingResult {
            decision: SamplingDecision::Drop,
            attributes: Vec::new(),
            trace_state: TraceState::NONE,
        }
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one story, told in its order")]
fn a_transactions_trace_shows_the_steps_of_its_path_on_every_server() {
    let collector = Collector::start();
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint.as_str()),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
    ];
    let cluster = Cluster::start_with(&["--processes"], &variables);
    // The first row lies before the cut, and the other one behind it.
    let table = ["table", "create", "bank", "--split-at", "a-m"];
    cluster.run(&table).ok();
    // Who samples nothing is told of nowhere.
    cluster.run(&["put", "bank", ROW, "balance", VALUE]).ok();

    let asked = Nothing::default();
    let nothing = SdkTracerProvider::builder()
        .with_sampler(asked.clone())
        .build();
    block_on(transfer(&cluster.master, &nothing)).expect("a transfer");
    let Nothing(asked) = asked;
    assert_eq!(
        asked.load(Ordering::Relaxed),
        1,
        "the transaction is asked about, and its steps make no spans"
    );

    let settings = Settings::of(Some(collector.endpoint.clone()), 1.0).expect("an endpoint");
    let exporter = Exporter::of_client(&settings).expect("an endpoint");
    let start_ts = block_on(transfer(&cluster.master, exporter.provider())).expect("a transfer");
    drop(exporter);

    let has = |spans: &[Span], role: &str, name: &str, times: usize| {
        let is_it = |span: &&Span| span.role == role && span.name == name;
        spans.iter().filter(is_it).count() >= times
    };
    let mut seen = Vec::new();
    wait_for("the spans of every server", || {
        seen = collector.spans();
        let all = has(&seen, "tso", "timestamps", 2)
            && has(&seen, "tablet", "get", 2)
            && has(&seen, "tablet", "prewrite", 2)
            && has(&seen, "tablet", "commit", 2 + 2)
            && has(&seen, "master", "session", 1)
            && has(&seen, "client", "transaction", 1);
        all.then_some(())
    });

    // One trace, whose first span is the transaction's.
    let traces: BTreeSet<&str> = seen.iter().map(|span| span.trace.as_str()).collect();
    assert_eq!(traces.len(), 1, "{seen:#?}");
    let by_id: BTreeMap<&str, &Span> = seen.iter().map(|span| (span.id.as_str(), span)).collect();
    let first: Vec<&Span> = seen.iter().filter(|span| span.parent.is_empty()).collect();
    let [transaction] = first[..] else {
        panic!("{first:#?}")
    };
    assert_eq!(transaction.name, "transaction");
    assert_eq!(transaction.says["result"], "committed");
    assert_eq!(transaction.says["start_ts"], start_ts);

    for span in &seen {
        let Some(parent) = by_id.get(span.parent.as_str()) else {
            assert!(span.parent.is_empty(), "{span:#?} has no parent");
            continue;
        };
        assert!(parent.began <= span.began, "{parent:#?}\n{span:#?}");
        let below: &[&str] = match (span.role.as_str(), span.name.as_str()) {
            ("client", _) => &["transaction"],
            ("tso", _) => &["begin", "timestamp", "lease", "safe_point_check"],
            ("master", "locate") => &["locate"],
            ("master", _) => &["lease", "safe_point_check"],
            ("tablet", "get") => &["get"],
            ("tablet", "prewrite") => &["prewrite"],
            ("tablet", "commit") if parent.role == "client" => {
                &["commit_primary", "commit_secondaries"]
            }
            // The steps, which lie within their request.
            ("tablet", _) => {
                assert!(span.ended <= parent.ended, "{parent:#?}\n{span:#?}");
                &["get", "prewrite", "commit"]
            }
            _ => panic!("{span:#?}"),
        };
        assert!(below.contains(&&*parent.name), "{parent:#?}\n{span:#?}");
        if span.role == "tso" {
            assert_eq!(span.says["result"], "ok");
        }
        if span.role == "tablet" && parent.role == "client" {
            assert_eq!(span.says["start_ts"], start_ts);
            assert_eq!(span.says["table"], "bank");
            assert_eq!(span.says["tablet"], parent.says["tablet"]);
            assert_eq!(span.says["result"], "ok");
        }
    }

    let steps = |request: &Span| -> BTreeSet<&str> {
        let steps = seen.iter().filter(|span| span.parent == request.id);
        steps.map(|span| span.name.as_str()).collect()
    };
    let by_client = |span: &&Span| {
        by_id
            .get(&*span.parent)
            .is_some_and(|it| it.role == "client")
    };
    for request in seen
        .iter()
        .filter(by_client)
        .filter(|it| it.role == "tablet")
    {
        let expected: &[&str] = match request.name.as_str() {
            "get" => &["queue", "load", "reply"],
            _ => &[
                "queue", "latch", "load", "decide", "group", "commit", "reply",
            ],
        };
        assert_eq!(
            steps(request),
            expected.iter().copied().collect(),
            "{request:#?}"
        );
    }
    let of_transaction = steps(transaction);
    for step in [
        "begin",
        "get",
        "prewrite",
        "safe_point_check",
        "timestamp",
        "commit_primary",
    ] {
        assert!(
            of_transaction.contains(step),
            "no {step} in {of_transaction:?}"
        );
    }
    assert!(!collector.has(ROW) && !collector.has(VALUE) && !collector.has("balance"));
}

/// What a client of a proxy samples is told of in its trace: its calls, the transaction, and what servers did for that. What it
/// doesn't sample begins no trace.
#[test]
fn a_session_of_a_proxy_is_a_part_of_the_trace_that_its_calls_are_in() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const CALLER: &str = "00f067aa0ba902b7";
    let collector = Collector::start();
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint.as_str()),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
    ];
    let cluster = Cluster::start_with(&["--processes"], &variables);
    cluster.run(&["table", "create", "bank"]).ok();
    let proxy = Http::new(&cluster.proxy());
    let cell = json!({"table": "bank", "row": ROW, "column": "balance"});
    let transfer = |traceparent: &str| {
        let call = |method, body| proxy.post_in_trace(method, traceparent, &body);
        let begun = call("begin", json!({"cells": [cell]}));
        let session = &begun["session"];
        let mut write = cell.clone();
        write["value"] = VALUE.into();
        call("commit", json!({"session": session, "writes": [write]}));
        begun["start_ts"].as_str().expect("a timestamp").to_owned()
    };
    for unsampled in ["", "nonsense", &format!("00-{TRACE}-{CALLER}-00")] {
        transfer(unsampled);
    }
    let start_ts = transfer(&format!("00-{TRACE}-{CALLER}-01"));

    let mut seen = Vec::new();
    wait_for("the spans of a session and of the servers", || {
        seen = collector.spans();
        let of = |role: &str, name: &str| {
            let mut all = seen.iter();
            all.any(|span| span.role == role && span.name == name)
        };
        let all = [
            ("proxy", "commit"),
            ("proxy", "transaction"),
            ("tablet", "get"),
            ("tablet", "prewrite"),
            ("tso", "timestamps"),
        ];
        // Those of the proxy and of the servers come apart from each other.
        let has_parent =
            |span: &Span| span.parent == CALLER || seen.iter().any(|it| it.id == span.parent);
        let is_whole = seen.iter().all(has_parent);
        (is_whole && all.iter().all(|(role, name)| of(role, name))).then_some(())
    });
    let others: Vec<&Span> = seen.iter().filter(|span| span.trace != TRACE).collect();
    assert_eq!(others.len(), 0, "{others:#?}");
    let below_caller = seen.iter().filter(|span| span.parent == CALLER);
    let mut below_caller: Vec<&Span> = below_caller.collect();
    below_caller.sort_by_key(|span| &span.name);
    let names: Vec<&str> = below_caller.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["begin", "commit", "transaction"], "{seen:#?}");
    assert_eq!(below_caller[1].says["result"], "ok");
    let transaction = below_caller[2];
    assert_eq!(transaction.says["start_ts"], start_ts);
    assert_eq!(transaction.says["result"], "committed");
    // Every other span lies below the transaction, through one of its steps.
    let below_call = |span: &&Span| below_caller[..2].iter().any(|it| it.id == span.parent);
    assert!(seen.iter().find(below_call).is_none(), "{seen:#?}");
    assert!(!collector.has(ROW) && !collector.has(VALUE));
}

/// The oracle hears of the traces for which a relay takes timestamps.
#[test]
fn timestamps_by_a_relay_are_parts_of_the_traces_that_they_are_for() {
    let collector = Collector::start();
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint.as_str());
    let cluster = Cluster::start_with(&["--processes"], &[endpoint]);
    cluster.run(&["table", "create", "bank"]).ok();
    let settings = Settings::of(Some(collector.endpoint.clone()), 1.0).expect("an endpoint");
    let exporter = Exporter::of_client(&settings).expect("an endpoint");
    block_on(async {
        let relays = [cluster.proxy()];
        let client = Client::connect_through(&cluster.master, &relays, Options::default());
        let client = client.await.expect("connected");
        assert!(client.trace(exporter.provider()));
        client.begin().await.expect("begun").rollback();
        client.settle().await;
    });
    drop(exporter);
    let metrics = cluster.metrics_address("proxy-0");
    let relayed = block_on(shown(&metrics, "percolator_proxy_relayed_timestamps_total"));
    assert!(relayed.is_some_and(|relayed| relayed >= 1.0), "{relayed:?}");
    wait_for("the oracle's part of the trace", || {
        let spans = collector.spans();
        let begin = spans.iter().find(|span| span.name == "begin")?;
        let timestamps = spans.iter().find(|span| span.parent == begin.id)?;
        assert_eq!(
            (&*timestamps.role, &*timestamps.name),
            ("tso", "timestamps")
        );
        Some(())
    });
}

/// The writer, the run of its observer, and what that causes are one trace.
#[test]
#[expect(clippy::too_many_lines, reason = "one story in its order")]
fn a_run_of_an_observer_is_a_part_of_the_trace_that_wrote() {
    let collector = Collector::start();
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint.as_str());
    let cluster = Cluster::start_with(&["--processes"], &[]);
    let sampled = |arguments: &[&str]| {
        let mut command = cluster.command(arguments);
        command.env(endpoint.0, endpoint.1);
        output_of(command).ok()
    };
    for table in ["documents", "words"] {
        cluster.run(&["table", "create", table]).ok();
        cluster.run(&["table", "observe", table, "text"]).ok();
    }
    let folder = tempfile::tempdir().expect("a folder");
    let told = folder.path().join("told");
    let copies = format!(
        r#"echo "$TRACEPARENT" >> {}; echo '{{"put":{{"table":"words","row":"r","column":"text","value":"x"}}}}'"#,
        told.display()
    );
    let observe = |table, exec: &str| {
        sampled(&[
            "observe",
            "run",
            table,
            "text",
            "--exec",
            exec,
            "--until-idle",
        ]);
    };
    sampled(&["put", "documents", ROW, "text", VALUE]);
    observe("documents", &copies);
    observe("words", "true");
    // Who samples nothing begins no trace that others go on with.
    cluster
        .run(&["put", "documents", "other", "text", VALUE])
        .ok();
    observe("documents", &copies);

    let mut spans = Vec::new();
    wait_for("the spans of a write and three runs", || {
        spans = collector.spans();
        let committed = |span: &&Span| {
            span.name == "transaction"
                && span.says.get("result").is_some_and(|it| it == "committed")
        };
        (spans.iter().filter(committed).count() >= 4).then_some(())
    });
    let below = |parent: &str, name: &str| -> Vec<&Span> {
        let all = spans.iter();
        all.filter(|span| span.parent == parent && span.name == name)
            .collect()
    };
    let is_cause = |span: &&&Span| !below(&span.id, "transaction").is_empty();
    let first = below("", "transaction");
    let causes: Vec<&&Span> = first.iter().filter(is_cause).collect();
    let [writer] = causes[..] else {
        panic!("{causes:#?} of {first:#?}")
    };
    let runs = below(&writer.id, "transaction");
    let [run] = runs[..] else { panic!("{runs:#?}") };
    assert_eq!(run.trace, writer.trace);
    assert!(run.began >= writer.began, "{writer:#?}\n{run:#?}");
    assert_eq!(below(&run.id, "handler").len(), 1, "{spans:#?}");
    let next = below(&run.id, "transaction");
    assert!(
        matches!(next[..], [next] if next.trace == run.trace),
        "{next:#?}"
    );
    let dropped = |span: &&Span| span.says.get("result").is_some_and(|it| it == "dropped");
    let of_other_trace = |span: &&Span| dropped(span) && span.trace != run.trace;
    assert!(spans.iter().find(of_other_trace).is_none(), "{spans:#?}");
    // What programs find in TRACEPARENT.
    let told = std::fs::read_to_string(&told).expect("what the handler was told");
    let told: Vec<&str> = told.lines().collect();
    let [of_run, of_other] = told[..] else {
        panic!("{told:?}")
    };
    assert_eq!(of_run, format!("00-{}-{}-01", run.trace, run.id));
    assert!(!of_other.contains(&run.trace), "{of_other}");
    assert!(!collector.has(ROW) && !collector.has(VALUE));
}
