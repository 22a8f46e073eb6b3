//! Lines that have no place in a history, and the largest numbers of those that have.

use percolator_history::{check, parse};

#[track_caller]
fn refused(line: &str, why: &str) {
    let good = r#"{"client":"a","outcome":"aborted","ops":[]}"#;
    let error = parse(&format!("{good}\n{line}\n")).expect_err("a bad line");
    let error = error.to_string();
    assert!(error.starts_with("line 2: "), "{error}");
    assert!(error.contains(why), "{error}");
}

#[test]
fn the_highest_number_is_no_timestamp() {
    for field in ["start_ts", "commit_ts"] {
        let line = |ts: &str| {
            format!(
                r#"{{"client":"a","{field}":"{ts}","outcome":"committed","ops":[{{"w":["x","1"]}}]}}"#
            )
        };
        refused(
            &line("18446744073709551615"),
            "18446744073709551615 is no timestamp",
        );
        refused(&line("18446744073709551616"), "too large");
        let highest = parse(&line("18446744073709551614")).expect("a history");
        assert_eq!(check(&highest).anomaly, None);
    }
}

#[test]
fn times_may_be_as_late_as_they_like() {
    let line = r#"{"client":"a","outcome":"committed","times":{"clock":"c","began_us":18446744073709551615,"ended_us":18446744073709551615},"ops":[{"w":["x","1"]}]}"#;
    let history = parse(line).expect("a history");
    assert_eq!(check(&history).anomaly, None);
}

#[test]
fn a_field_of_another_name_is_refused() {
    refused(
        r#"{"client":"a","startts":"1","outcome":"committed","ops":[]}"#,
        "unknown field `startts`",
    );
    refused(
        r#"{"client":"a","outcome":"committed","times":{"clock":"c","begun_us":1},"ops":[]}"#,
        "unknown field `begun_us`",
    );
    refused(
        r#"{"client":"a","outcome":"committed","ops":[{"x":["x","1"]}]}"#,
        "unknown variant `x`",
    );
}

#[test]
fn an_end_before_the_beginning_is_refused() {
    let timed = |began_us: u64, ended_us: u64| {
        format!(
            r#"{{"client":"a","outcome":"committed","times":{{"clock":"c","began_us":{began_us},"ended_us":{ended_us}}},"ops":[]}}"#
        )
    };
    refused(&timed(9, 5), "ended_us 5 isn't at or above began_us 9");
    assert!(parse(&timed(5, 5)).is_ok());
    let stamped = |commit_ts: u64, op: &str| {
        format!(
            r#"{{"client":"a","start_ts":"7","commit_ts":"{commit_ts}","outcome":"committed","ops":[{{"{op}":["x","1"]}}]}}"#
        )
    };
    refused(&stamped(7, "w"), "commit_ts 7 isn't above start_ts 7");
    refused(&stamped(6, "w"), "commit_ts 6 isn't above start_ts 7");
    assert!(parse(&stamped(8, "w")).is_ok());
    // Who only reads has no timestamp of its own.
    assert!(parse(&stamped(7, "r")).is_ok());
}
