package percolator_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"percolator.dev/percolator"
)

// connect returns a client of the proxy that PERCOLATOR_PROXY names, which has a table t. `cargo test -p percolator-cli --test go`
// runs these tests on a cluster of its own.
func connect(t *testing.T) *percolator.Client {
	t.Helper()
	if os.Getenv(percolator.AddressVariable) == "" {
		t.Skip("PERCOLATOR_PROXY names no proxy")
	}
	client, err := percolator.Connect("")
	must(t, err)
	t.Cleanup(func() { must(t, client.Close()) })
	return client
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// row is one that no other test has.
func row() string {
	id := make([]byte, 16)
	_, _ = rand.Read(id)
	return hex.EncodeToString(id)
}

func value(t *testing.T, client *percolator.Client, row string) (found []byte) {
	t.Helper()
	must(t, client.Transact(t.Context(), func(ctx context.Context, tx *percolator.Tx) (err error) {
		found, err = tx.Get(ctx, "t", row, "c")
		return err
	}))
	return found
}

func put(t *testing.T, client *percolator.Client, row, value string) {
	t.Helper()
	must(t, client.Transact(t.Context(), func(ctx context.Context, tx *percolator.Tx) error {
		return tx.Put(ctx, "t", row, "c", []byte(value))
	}))
}

func TestTransactCommitsOrRollsBack(t *testing.T) {
	client, ctx, a := connect(t), t.Context(), row()
	var last *percolator.Tx
	must(t, client.Transact(ctx, func(ctx context.Context, tx *percolator.Tx) error {
		last = tx
		must(t, tx.Put(ctx, "t", a, "c", []byte("1")))
		own, err := tx.Get(ctx, "t", a, "c")
		if string(own) != "1" || value(t, client, a) != nil {
			t.Errorf("own %q", own)
		}
		return err
	}))
	outcome, err := last.Outcome(ctx)
	if err != nil || outcome.State != percolator.Committed || outcome.CommitTS <= last.StartTS() {
		t.Errorf("%v, %v", outcome, err)
	}
	own := errors.New("of the program")
	err = client.Transact(ctx, func(ctx context.Context, tx *percolator.Tx) error {
		last = tx
		must(t, tx.Put(ctx, "t", a, "c", []byte("2")))
		return fmt.Errorf("wrapped: %w", own)
	})
	if outcome, _ := last.Outcome(ctx); !errors.Is(err, own) || outcome.State != percolator.RolledBack {
		t.Errorf("%v, %v", err, outcome)
	}
	func() {
		defer func() { _ = recover() }()
		_ = client.Transact(ctx, func(_ context.Context, tx *percolator.Tx) error {
			last = tx
			panic("of the program")
		})
	}()
	if outcome, _ := last.Outcome(ctx); outcome.State != percolator.RolledBack {
		t.Errorf("after a panic: %v", outcome.State)
	}
	if got := value(t, client, a); string(got) != "1" {
		t.Errorf("%q", got)
	}
}

func TestATableIsMadeOnce(t *testing.T) {
	client, ctx, table := connect(t), t.Context(), row()
	must(t, client.CreateTable(ctx, table, "m", "\xff"))
	must(t, client.Transact(ctx, func(ctx context.Context, tx *percolator.Tx) error {
		return tx.Put(ctx, table, "z", "c", []byte("1"))
	}))
	if err := client.CreateTable(ctx, table); !errors.Is(err, percolator.ErrAlreadyExists) {
		t.Errorf("made twice: %v", err)
	}
	if err := client.CreateTable(ctx, "No Name"); !errors.Is(err, percolator.ErrInvalidArgument) {
		t.Errorf("a wrong name: %v", err)
	}
}

func TestBytesComeBackAsTheyWere(t *testing.T) {
	client, ctx, a := connect(t), t.Context(), row()+"\xff\x00"
	for _, want := range [][]byte{{}, {0, 0xff}, []byte("plain"), bytes.Repeat([]byte{7}, 300_000)} {
		must(t, client.Transact(ctx, func(ctx context.Context, tx *percolator.Tx) error {
			return tx.Put(ctx, "t", a, "\xff", want)
		}))
		must(t, client.Transact(ctx, func(ctx context.Context, tx *percolator.Tx) error {
			got, err := tx.BatchGet(ctx, percolator.CellName{"t", a, "\xff"}, percolator.CellName{"t", a, "no"})
			must(t, err)
			if got[0] == nil || !bytes.Equal(got[0], want) || got[1] != nil {
				t.Errorf("%d bytes came back as %v", len(want), got)
			}
			for cell, err := range tx.Scan(ctx, "t", percolator.Range{Prefix: a}) {
				must(t, err)
				if cell.Row != a || cell.Column != "\xff" || !bytes.Equal(cell.Value, want) {
					t.Errorf("%v", cell)
				}
			}
			return nil
		}))
	}
}

func TestCellsAreReadWithTheBeginning(t *testing.T) {
	client, ctx, a, b := connect(t), t.Context(), row(), row()
	put(t, client, b, "1")
	cells := percolator.WithCells(percolator.CellName{"t", a, "c"}, percolator.CellName{"t", b, "c"})
	tx, err := client.Begin(ctx, cells)
	must(t, err)
	if got := tx.Values(); len(got) != 2 || got[0] != nil || string(got[1]) != "1" {
		t.Errorf("%v", got)
	}
	must(t, tx.Rollback(ctx))
	put(t, client, b, "2")
	before, err := client.Begin(ctx, percolator.AtSnapshot(tx.StartTS()), cells)
	must(t, err)
	if got := before.Values(); string(got[1]) != "1" {
		t.Errorf("%v", got)
	}
	must(t, before.Put(ctx, "t", a, "c", nil))
	if _, err = before.Commit(ctx); !errors.Is(err, percolator.ErrInvalidArgument) {
		t.Errorf("%v", err)
	}
	_, err = client.Begin(ctx, percolator.WithCells(percolator.CellName{"nowhere", a, "c"}))
	if !errors.Is(err, percolator.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

func TestAScanIsInOrderAndMayBeLeft(t *testing.T) {
	client, ctx, prefix := connect(t), t.Context(), row()
	rows := make([]string, 1500)
	must(t, client.Transact(ctx, func(ctx context.Context, tx *percolator.Tx) error {
		for number := range rows {
			rows[number] = fmt.Sprintf("%s-%04d", prefix, number)
			must(t, tx.Put(ctx, "t", rows[number], "c", []byte(rows[number])))
		}
		return tx.Delete(ctx, "t", rows[0], "c")
	}))
	scanned := func(tx *percolator.Tx, rows percolator.Range) (found []string) {
		for cell, err := range tx.Scan(ctx, "t", rows) {
			must(t, err)
			found = append(found, cell.Row)
		}
		return found
	}
	must(t, client.Transact(ctx, func(ctx context.Context, tx *percolator.Tx) error {
		if found := scanned(tx, percolator.Range{Prefix: prefix}); strings.Join(found, " ") != strings.Join(rows[1:], " ") {
			t.Errorf("%d rows", len(found))
		}
		found := scanned(tx, percolator.Range{Start: rows[3], End: rows[6], Reverse: true})
		if strings.Join(found, " ") != strings.Join([]string{rows[5], rows[4], rows[3]}, " ") {
			t.Errorf("%v", found)
		}
		for cell, err := range tx.Scan(ctx, "t", percolator.Range{Prefix: prefix}) {
			must(t, err)
			if cell.Row != rows[1] {
				t.Errorf("%v", cell)
			}
			break
		}
		// In the middle of a scan.
		for cell, err := range tx.Scan(ctx, "t", percolator.Range{Prefix: prefix, Limit: 3}) {
			must(t, err)
			got, err := tx.Get(ctx, "t", cell.Row, "c")
			must(t, err)
			if !bytes.Equal(got, cell.Value) {
				t.Errorf("%q is %q", cell.Row, got)
			}
		}
		for _, err := range tx.Scan(ctx, "nowhere", percolator.Range{}) {
			if !errors.Is(err, percolator.ErrNotFound) {
				t.Errorf("%v", err)
			}
		}
		return nil
	}))
}

func TestAConflictIsTriedAgain(t *testing.T) {
	client, ctx, a := connect(t), t.Context(), row()
	runs := 0
	must(t, client.Transact(ctx, func(ctx context.Context, tx *percolator.Tx) error {
		runs++
		has, err := tx.Get(ctx, "t", a, "c")
		must(t, err)
		if runs == 1 {
			put(t, client, a, "10")
		}
		number, _ := strconv.Atoi(string(has))
		return tx.Put(ctx, "t", a, "c", []byte(strconv.Itoa(number+5)))
	}))
	if got := value(t, client, a); runs != 2 || string(got) != "15" {
		t.Errorf("%d runs, %q", runs, got)
	}

	// And one that is in the way of a lock for update.
	tx, err := client.Begin(ctx)
	must(t, err)
	_, err = tx.GetForUpdate(ctx, "t", a, "c")
	must(t, err)
	must(t, tx.Put(ctx, "t", row(), "c", nil))
	put(t, client, a, "1")
	_, err = tx.Commit(ctx)
	var failed *percolator.Error
	if !errors.Is(err, percolator.ErrAborted) || !errors.As(err, &failed) || failed.Reason != "CONFLICT" {
		t.Errorf("%v", err)
	}
	if !strings.HasSuffix(failed.Metadata["cell"], "/"+a+":c") {
		t.Errorf("%v", failed.Metadata)
	}
}

func TestWritesThatAreRefusedKeepAllFromBeingCommitted(t *testing.T) {
	client, ctx := connect(t), t.Context()
	for _, wrong := range []struct {
		table, row string
		kind       error
	}{{"t", "", percolator.ErrInvalidArgument}, {"nowhere", "a", percolator.ErrNotFound}} {
		a, b := row(), row()
		tx, err := client.Begin(ctx)
		must(t, err)
		must(t, tx.Put(ctx, "t", a, "c", nil))
		must(t, tx.Put(ctx, wrong.table, wrong.row, "c", nil))
		must(t, tx.Put(ctx, "t", b, "c", nil))
		if _, err = tx.Get(ctx, "t", a, "c"); !errors.Is(err, wrong.kind) {
			t.Errorf("%v", err)
		}
		var failed *percolator.Error
		if _, err = tx.Commit(ctx); !errors.As(err, &failed) || failed.Metadata["write"] != "1" {
			t.Errorf("%v", err)
		}
		if outcome, err := tx.Outcome(ctx); err != nil || outcome.State != percolator.RolledBack {
			t.Errorf("%v, %v", outcome, err)
		}
		if value(t, client, a) != nil || value(t, client, b) != nil {
			t.Error("some of it is committed")
		}
	}
}

func TestManyWritesAreSentTogether(t *testing.T) {
	client, ctx, prefix := connect(t), t.Context(), row()
	large := bytes.Repeat([]byte("x"), 3<<20)
	must(t, client.Transact(ctx, func(ctx context.Context, tx *percolator.Tx) error {
		for number := range 600 {
			must(t, tx.Put(ctx, "t", fmt.Sprintf("%s-%d", prefix, number), "c", []byte("1")))
		}
		return tx.Put(ctx, "t", prefix+"-0", "large", large)
	}))
	must(t, client.Transact(ctx, func(ctx context.Context, tx *percolator.Tx) error {
		cells, bytes := 0, 0
		for cell, err := range tx.Scan(ctx, "t", percolator.Range{Prefix: prefix}) {
			must(t, err)
			cells, bytes = cells+1, bytes+len(cell.Value)
		}
		if cells != 601 || bytes != 600+len(large) {
			t.Errorf("%d cells, %d bytes", cells, bytes)
		}
		return nil
	}))
}

func TestAMessageThatIsTooLargeIsRefused(t *testing.T) {
	client, ctx := connect(t), t.Context()
	tx, err := client.Begin(ctx)
	must(t, err)
	// The proxy doesn't read it, and gives no reason.
	if _, err = tx.Get(ctx, "t", strings.Repeat("a", 6<<20), "c"); !errors.Is(err, percolator.ErrInvalidArgument) {
		t.Errorf("%v", err)
	}
	must(t, tx.Put(ctx, "t", row(), "c", bytes.Repeat([]byte("x"), 4<<20)))
	_, err = tx.Commit(ctx)
	must(t, err)
}

func TestATransactionThatHasEndedSaysSo(t *testing.T) {
	client, ctx, a := connect(t), t.Context(), row()
	tx, err := client.Begin(ctx)
	must(t, err)
	must(t, tx.Put(ctx, "t", a, "c", nil))
	first, err := tx.Commit(ctx)
	must(t, err)
	// A commit whose answer was lost may be asked for again.
	if again, err := tx.Commit(ctx); err != nil || again != first {
		t.Errorf("%d, %v", again, err)
	}
	var failed *percolator.Error
	err = tx.Put(ctx, "t", a, "c", nil)
	if !errors.Is(err, percolator.ErrFailedPrecondition) || !errors.As(err, &failed) || failed.Reason != "SESSION_ENDED" {
		t.Errorf("%v", err)
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	tx, err = client.Begin(ctx)
	must(t, err)
	must(t, tx.Put(ctx, "t", a, "c", nil))
	if _, err = tx.Commit(done); !errors.Is(err, context.Canceled) || errors.Is(err, percolator.ErrOutcomeUnknown) {
		t.Errorf("%v", err)
	}
	nobody, err := percolator.Connect("127.0.0.1:1")
	must(t, err)
	if _, err = nobody.Begin(ctx); !errors.Is(err, percolator.ErrUnavailable) {
		t.Errorf("%v", err)
	}
}

func TestGoroutinesShareAClient(t *testing.T) {
	client, a := connect(t), row()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 5 {
				err := client.Transact(t.Context(), func(ctx context.Context, tx *percolator.Tx) error {
					has, err := tx.Get(ctx, "t", a, "c")
					if err != nil {
						return err
					}
					number, _ := strconv.Atoi(string(has))
					return tx.Put(ctx, "t", a, "c", []byte(strconv.Itoa(number+1)))
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if got := value(t, client, a); string(got) != "20" {
		t.Errorf("%q", got)
	}
}
