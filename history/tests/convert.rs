//! What other checkers are given.

use percolator_history::{
    ConvertError, Op, Outcome, Times, Transaction, dbcop, elle, parse, write,
};

fn transaction(client: &str, start_ts: u64, outcome: Outcome, ops: Vec<Op>) -> Transaction {
    Transaction {
        client: client.into(),
        start_ts: Some(start_ts),
        commit_ts: (outcome == Outcome::Committed).then_some(start_ts + 1),
        outcome,
        times: None,
        ops,
    }
}

fn read(cell: &str, value: Option<&str>) -> Op {
    Op::Read(cell.into(), value.map(Into::into))
}

fn put(cell: &str, value: &str) -> Op {
    Op::Write(cell.into(), Some(value.into()))
}

fn history() -> Vec<Transaction> {
    use Outcome::{Aborted, Committed, Unknown};
    vec![
        transaction("a", 1, Committed, vec![read("x", None), put("x", "7")]),
        transaction("b", 3, Unknown, vec![read("x", Some("7")), put("x", "7,8")]),
        transaction(
            "b",
            5,
            Committed,
            vec![read("x", Some("7,8")), read("y", None)],
        ),
        transaction("a", 7, Aborted, vec![put("y", "9")]),
    ]
}

#[test]
fn elle_gets_appends() {
    let text = elle(&history()).expect("lists");
    assert_eq!(
        text,
        "{:index 0, :type :invoke, :process 0, :f :txn, :value [[:r 0 nil] [:append 0 7]]}\n\
         {:index 1, :type :ok, :process 0, :f :txn, :value [[:r 0 []] [:append 0 7]]}\n\
         {:index 2, :type :invoke, :process 1, :f :txn, :value [[:r 0 nil] [:append 0 8]]}\n\
         {:index 3, :type :info, :process 1, :f :txn, :value [[:r 0 [7]] [:append 0 8]]}\n\
         {:index 4, :type :invoke, :process 2, :f :txn, :value [[:r 0 nil] [:r 1 nil]]}\n\
         {:index 5, :type :ok, :process 2, :f :txn, :value [[:r 0 [7 8]] [:r 1 []]]}\n\
         {:index 6, :type :invoke, :process 0, :f :txn, :value [[:append 1 9]]}\n\
         {:index 7, :type :fail, :process 0, :f :txn, :value [[:append 1 9]]}\n"
    );
}

#[test]
fn elle_gets_real_time() {
    let mut history = history();
    // The two of b's follow one another at once; of a's last nobody knows when it was asked for.
    let times = [
        (Some(5), Some(40)),
        (Some(10), None),
        (Some(20), Some(30)),
        (None, Some(40)),
    ];
    for (transaction, (began_us, ended_us)) in history.iter_mut().zip(times) {
        let clock = "c".to_owned();
        transaction.times = Some(Times {
            clock,
            began_us,
            ended_us,
        });
    }
    let order = |text: &str| -> Vec<String> {
        let lines = text.lines().map(|line| line.split(", :f").next());
        lines.flatten().map(str::to_owned).collect()
    };
    assert_eq!(
        order(&elle(&history).expect("lists")),
        [
            "{:index 0, :time 5000, :type :invoke, :process 0",
            "{:index 1, :time 10000, :type :invoke, :process 1",
            "{:index 2, :time 20000, :type :invoke, :process 2",
            "{:index 3, :time 30000, :type :ok, :process 2",
            "{:index 4, :time 40000, :type :invoke, :process 3",
            "{:index 5, :time 40000, :type :ok, :process 0",
            "{:index 6, :time 40000, :type :info, :process 1",
            "{:index 7, :time 40000, :type :fail, :process 3",
        ]
    );
    // Times of two clocks can't be compared.
    if let Some(times) = &mut history[2].times {
        times.clock = "another".to_owned();
    }
    let text = elle(&history).expect("lists");
    assert!(!text.contains(":time"), "{text}");
    assert!(
        text.contains("{:index 7, :type :fail, :process 0"),
        "{text}"
    );
}

#[test]
fn what_is_no_list_is_refused_for_elle() {
    let mut wrong = history();
    wrong[1].ops[1] = put("x", "8,7");
    let error = elle(&wrong).expect_err("another order");
    assert!(matches!(
        error,
        ConvertError::NotAList { transaction: 2, .. }
    ));
    wrong[1].ops[1] = put("x", "text");
    assert!(elle(&wrong).is_err());
}

#[test]
fn what_a_transaction_wrote_and_read_again_is_in_order() {
    let own = |outcome| {
        let ops = vec![
            put("x", "7"),
            read("x", Some("7")),
            put("x", "7,8"),
            read("x", Some("7,8")),
            read("y", None),
        ];
        [transaction("a", 1, outcome, ops)]
    };
    let text = elle(&own(Outcome::Committed)).expect("lists");
    let did = "[[:append 0 7] [:r 0 [7]] [:append 0 8] [:r 0 [7 8]] [:r 1 []]]";
    assert!(text.contains(did), "{text}");
    for outcome in [Outcome::Committed, Outcome::Aborted] {
        let json = dbcop(&own(outcome)).expect("no deletions");
        let events = "\"events\":[{\"Write\":{\"variable\":0,\"version\":0}},{\"Write\":{\"variable\":0,\
                      \"version\":1}},{\"Read\":{\"variable\":1,\"version\":null}}]";
        assert!(json.contains(events), "{json}");
    }
}

#[test]
fn dbcop_gets_sessions() {
    let json = dbcop(&history()).expect("no deletions");
    assert_eq!(
        json,
        "{\"data\":[[{\"committed\":true,\"events\":[{\"Read\":{\"variable\":0,\"version\":null}},\
         {\"Write\":{\"variable\":0,\"version\":0}}]},\
         {\"committed\":false,\"events\":[{\"Write\":{\"variable\":1,\"version\":2}}]}],\
         [{\"committed\":true,\"events\":[{\"Read\":{\"variable\":0,\"version\":0}},\
         {\"Write\":{\"variable\":0,\"version\":1}}]},\
         {\"committed\":true,\"events\":[{\"Read\":{\"variable\":0,\"version\":1}},\
         {\"Read\":{\"variable\":1,\"version\":null}}]}]],\
         \"end\":\"1970-01-01T00:00:00Z\",\"info\":\"percolator history convert\",\
         \"params\":{\"id\":0,\"n_event\":2,\"n_node\":2,\"n_transaction\":2,\"n_variable\":2},\
         \"start\":\"1970-01-01T00:00:00Z\"}\n"
    );
    let mut wrong = history();
    wrong[3].ops[0] = Op::Write("y".into(), None);
    assert!(matches!(
        dbcop(&wrong),
        Err(ConvertError::Deletion { transaction: 4, .. })
    ));
}

#[test]
fn dbcop_gets_as_committed_what_was_read_by_one_that_has_to_be() {
    let history = [
        transaction(
            "a",
            1,
            Outcome::Unknown,
            vec![read("r", None), put("r", "1")],
        ),
        transaction(
            "b",
            2,
            Outcome::Unknown,
            vec![read("r", Some("1")), put("r", "1,2")],
        ),
        transaction("c", 3, Outcome::Committed, vec![read("r", Some("1,2"))]),
        transaction("d", 4, Outcome::Unknown, vec![put("s", "1")]),
    ];
    let json = dbcop(&history).expect("no deletions");
    assert_eq!(json.matches("\"committed\":true").count(), 3, "{json}");
}

#[test]
fn a_later_line_takes_the_place_of_an_earlier_one() {
    let ended = history();
    let mut begun = ended[0].clone();
    begun.outcome = Outcome::Unknown;
    begun.commit_ts = None;
    let text = write(&[begun]) + &write(&ended);
    assert_eq!(parse(&text).expect("a history"), ended);
}

#[test]
fn a_second_line_of_one_transaction_that_contradicts_the_first_is_refused() {
    let ended = history();
    let first = write(&ended[..1]);
    let mut other = ended[0].clone();
    other.outcome = Outcome::Unknown;
    let unknown = write(std::slice::from_ref(&other));
    other.ops.push(put("y", "8"));
    let more = write(&[other]);
    for lines in [[&first, &first], [&first, &unknown], [&more, &first]] {
        let error = parse(&format!("\n{}\n{}", lines[0], lines[1])).expect_err("twice");
        let said = error.to_string();
        for words in ["line 4", "line 2", &*ended[0].client] {
            assert!(said.contains(words), "{said}: no {words:?}");
        }
    }
}

#[test]
fn several_transactions_may_read_at_one_snapshot() {
    let ended = history();
    let mut reader = ended[2].clone();
    (reader.client, reader.start_ts) = ("a".into(), ended[0].start_ts);
    let all = [reader.clone(), ended[0].clone(), reader.clone(), reader];
    assert_eq!(parse(&write(&all)).expect("a history"), all);
}
