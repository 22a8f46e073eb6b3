package percolator

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"percolator.dev/percolator/internal/proxypb"
)

const (
	// Writes are sent together: so many, or so many bytes of them, at the most. A larger one is sent alone.
	writesMax      = 256
	writesBytesMax = 1 << 20
	// What a cell may have, by proxy.proto.
	rowBytesMax    = 4096
	columnBytesMax = 1024
	valueBytesMax  = 4 << 20
	// Between two requests for a commit whose answer was lost.
	commitPause = 50 * time.Millisecond
	// How long a transaction is rolled back whose context is done.
	rollbackTimeout = time.Second
)

// Tx is a transaction. Its reads see one snapshot, and its own writes.
//
// Writes are sent together: with the next read, with the commit, or when they are many. That call returns what is wrong with
// them; the transaction is rolled back then, and Commit returns the same error.
//
// A Tx may be used by several goroutines. What each of them writes is in the transaction when its call has returned.
type Tx struct {
	rpc     proxypb.TransactionsClient
	session string
	startTS uint64
	values  [][]byte

	mu sync.Mutex
	// Not sent yet, and their bytes.
	writes      []*proxypb.CellWrite
	writesBytes int
	// Why it can't be committed.
	failed *Error
	ended  bool
	// A commit was sent whose end is not known; and the end of one that is.
	mayBeCommitted bool
	commitTS       uint64
	finished       bool
}

// Cell is a cell that a scan has found.
type Cell struct {
	Row, Column string
	Value       []byte
}

// Range is a range of rows. The zero Range is the whole table.
type Range struct {
	// Start is the first row, and End the first one behind the range. If End is empty, it is the end of the table.
	Start, End string
	// Prefix, in place of Start and End: the rows that begin with it.
	Prefix string
	// Reverse is from the end to the start.
	Reverse bool
	// Limit is the number of cells at most, and LimitRows that of rows; 0 is none.
	Limit, LimitRows uint64
}

// State is how a transaction ended.
type State int

const (
	// Pending: it is open, or its commit is under way.
	Pending State = iota + 1
	// Committed.
	Committed
	// RolledBack: nothing of it is or will be visible.
	RolledBack
	// Forgotten: it ended so long ago that its records may have been collected; it may be committed.
	Forgotten
)

func (s State) String() string {
	switch s {
	case Pending:
		return "pending"
	case Committed:
		return "committed"
	case RolledBack:
		return "rolled back"
	case Forgotten:
		return "forgotten"
	}
	return fmt.Sprintf("State(%d)", int(s))
}

// Outcome is what is known of how a transaction ended.
type Outcome struct {
	State State
	// CommitTS is that of a transaction that is committed.
	CommitTS uint64
}

// StartTS is the snapshot, and the transaction's name.
func (tx *Tx) StartTS() uint64 { return tx.startTS }

// Token is for Join of other clients. A client that has it can use the transaction.
func (tx *Tx) Token() string { return tx.session }

// Values has the values of the cells that were read with the beginning, in their order; nil where a cell has none.
func (tx *Tx) Values() [][]byte { return tx.values }

// Get returns the value of a cell, or nil if it has none.
func (tx *Tx) Get(ctx context.Context, table, row, column string) ([]byte, error) {
	return tx.get(ctx, table, row, column, tx.rpc.Get)
}

// GetForUpdate returns the value of a cell. The commit fails if another transaction changes it meanwhile.
func (tx *Tx) GetForUpdate(ctx context.Context, table, row, column string) ([]byte, error) {
	return tx.get(ctx, table, row, column, tx.rpc.GetForUpdate)
}

type getCall func(context.Context, *proxypb.GetRequest, ...grpc.CallOption) (*proxypb.GetResponse, error)

func (tx *Tx) get(ctx context.Context, table, row, column string, call getCall) ([]byte, error) {
	if err := tx.flush(ctx); err != nil {
		return nil, err
	}
	request := &proxypb.GetRequest{Session: tx.session, Table: table, Row: []byte(row), Column: []byte(column)}
	read, err := call(ctx, request)
	if err != nil {
		return nil, tx.errorOf(ctx, err)
	}
	return read.Value, nil
}

// BatchGet returns the values of several cells, in their order; nil where a cell has none.
func (tx *Tx) BatchGet(ctx context.Context, cells ...CellName) ([][]byte, error) {
	if err := tx.flush(ctx); err != nil {
		return nil, err
	}
	request := &proxypb.BatchGetRequest{Session: tx.session, Cells: names(cells)}
	read, err := tx.rpc.BatchGet(ctx, request)
	if err != nil {
		return nil, tx.errorOf(ctx, err)
	}
	return values(read.Values), nil
}

// Scan returns the cells of a range of rows, in order. An error ends it.
//
//	for cell, err := range tx.Scan(ctx, "accounts", percolator.Range{Prefix: "b"}) {
//		if err != nil {
//			return err
//		}
//	}
func (tx *Tx) Scan(ctx context.Context, table string, rows Range) iter.Seq2[Cell, error] {
	return func(yield func(Cell, error) bool) {
		if err := tx.flush(ctx); err != nil {
			yield(Cell{}, err)
			return
		}
		// Ends the call if the loop is left.
		call, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := tx.rpc.Scan(call, &proxypb.ScanRequest{
			Session: tx.session, Table: table,
			Start: []byte(rows.Start), End: []byte(rows.End), Prefix: []byte(rows.Prefix),
			Reverse: rows.Reverse, Limit: rows.Limit, LimitRows: rows.LimitRows,
		})
		for err == nil {
			var page *proxypb.ScanResponse
			if page, err = nextPage(call, cancel, stream); err != nil {
				break
			}
			for _, cell := range page.Cells {
				if !yield(Cell{string(cell.Row), string(cell.Column), cell.Value}, nil) {
					return
				}
			}
		}
		if err != io.EOF {
			yield(Cell{}, tx.errorOf(ctx, err))
		}
	}
}

// nextPage is what a scan answers next. Without a deadline it is awaited as any answer is, and the call is ended then.
func nextPage(
	ctx context.Context, end context.CancelFunc, stream grpc.ServerStreamingClient[proxypb.ScanResponse],
) (*proxypb.ScanResponse, error) {
	if _, ok := ctx.Deadline(); !ok {
		late := time.AfterFunc(retryFor, end)
		defer late.Stop()
	}
	return stream.Recv()
}

// Put sets a cell at the commit. A row has 4,096 bytes at the most, a column 1,024, and a value 4 MiB.
func (tx *Tx) Put(ctx context.Context, table, row, column string, value []byte) error {
	// The caller may go on to use its own.
	change := &proxypb.CellWrite_Put{Put: append([]byte{}, value...)}
	return tx.write(ctx, &proxypb.CellWrite{Table: table, Row: []byte(row), Column: []byte(column), Change: change})
}

// Delete deletes a cell at the commit.
func (tx *Tx) Delete(ctx context.Context, table, row, column string) error {
	change := &proxypb.CellWrite_Delete{Delete: true}
	return tx.write(ctx, &proxypb.CellWrite{Table: table, Row: []byte(row), Column: []byte(column), Change: change})
}

func (tx *Tx) write(ctx context.Context, write *proxypb.CellWrite) error {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	refused := cmp.Or(
		tooLarge("row", len(write.Row), rowBytesMax),
		tooLarge("column", len(write.Column), columnBytesMax),
		tooLarge("value", len(write.GetPut()), valueBytesMax),
	)
	if refused != nil {
		if tx.ended {
			return refused
		}
		// As any write that is refused.
		return tx.failLocked(ctx, refused)
	}
	if tx.ended {
		// The proxy says how.
		request := &proxypb.WriteRequest{Session: tx.session, Writes: []*proxypb.CellWrite{write}}
		_, err := tx.rpc.Write(ctx, request)
		if err != nil {
			return tx.errorOfLocked(ctx, err)
		}
		return nil
	}
	size := proto.Size(write)
	if len(tx.writes) == writesMax || tx.writesBytes+size > writesBytesMax {
		if err := tx.flushLocked(ctx); err != nil {
			return err
		}
	}
	tx.writes = append(tx.writes, write)
	tx.writesBytes += size
	return nil
}

func (tx *Tx) flush(ctx context.Context) error {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	return tx.flushLocked(ctx)
}

func (tx *Tx) flushLocked(ctx context.Context) error {
	if len(tx.writes) == 0 || tx.ended {
		return nil
	}
	_, err := tx.rpc.Write(ctx, &proxypb.WriteRequest{Session: tx.session, Writes: tx.writes})
	if err != nil {
		// A program that goes on all the same would commit without them. And where the connection was lost they may still
		// arrive, behind later ones of the same cells: there must be none.
		return tx.failLocked(ctx, tx.errorOfLocked(ctx, err))
	}
	tx.writes, tx.writesBytes = nil, 0
	return nil
}

// Commit commits, and returns the timestamp from which on the writes are visible.
//
// ErrAborted and ErrUnavailable say that nothing is committed, ErrOutcomeUnknown that it may be: also if the context is done
// while the commit is under way.
func (tx *Tx) Commit(ctx context.Context) (uint64, error) {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if tx.failed != nil {
		return 0, tx.failed
	}
	if tx.commitTS != 0 {
		return tx.commitTS, nil
	}
	wasSent := tx.mayBeCommitted
	commitTS, err := tx.commitLocked(ctx)
	if err == nil {
		tx.commitTS = commitTS
		return commitTS, nil
	}
	tx.mayBeCommitted = wasSent || err.Reason == reasonOutcomeUnknown
	if tx.isOfWrite(err) {
		// Nobody has to wait until the proxy ends the transaction.
		tx.failLocked(ctx, err)
	}
	return 0, err
}

// isOfWrite says whether a commit was refused because of a write that came with it: it has not begun.
func (tx *Tx) isOfWrite(failed *Error) bool {
	switch failed.Code {
	case codes.InvalidArgument, codes.NotFound, codes.ResourceExhausted, codes.Unavailable:
		return len(tx.writes) > 0
	}
	return false
}

func (tx *Tx) commitLocked(ctx context.Context) (uint64, *Error) {
	// A commit that was sent before may be done, whatever the context is now.
	if err := ctx.Err(); err != nil && !tx.ended {
		// It stays so: if the rollback is lost, a commit that is asked for once more could still be done.
		failed := &Error{Code: status.FromContextError(err).Code(), Message: "nothing is committed: " + err.Error(), cause: err}
		return 0, tx.failLocked(ctx, failed)
	}
	tx.ended = true
	giveUp := giveUpAt(ctx)
	call, cancel := context.WithDeadline(ctx, giveUp)
	defer cancel()
	isLost := tx.mayBeCommitted
	for {
		done, err := tx.rpc.Commit(call, &proxypb.CommitRequest{Session: tx.session, Writes: tx.writes})
		if err == nil {
			return done.CommitTs, nil
		}
		failed := errorOf(ctx, err)
		switch {
		case failed.Reason == reasonSessionUnknown && isLost:
			return 0, outcomeUnknown(tx.startTS, failed)
		case failed.Reason == reasonSessionUnknown:
			return 0, restarted(failed)
		case failed.Reason == reasonCommitting || failed.Reason == "":
			// An answer of the proxy has a reason; without one it was lost, and the commit may go on.
			isLost = true
		case failed.Code == codes.ResourceExhausted:
			// Of a commit that was sent before, this says nothing, unless that can be rolled back still.
			if !isLost || (len(tx.writes) > 0 && tx.rollback(ctx) == nil) {
				return 0, failed
			}
		case failed.Reason == reasonOtherProxy && isLost:
			// The connection leads to another one now.
		case isLost && tx.isOfWrite(failed):
			// The same of any write that was refused.
			if tx.rollback(ctx) == nil {
				return 0, failed
			}
		default:
			return 0, failed
		}
		select {
		case <-ctx.Done():
			failed.cause = ctx.Err()
			return 0, outcomeUnknown(tx.startTS, failed)
		case <-time.After(commitPause):
		}
		if time.Now().After(giveUp) {
			return 0, outcomeUnknown(tx.startTS, failed)
		}
	}
}

// Finish ends a participant, of Join: the client that began the transaction commits what it has written. ErrOutcomeUnknown says that
// it may be handed over, and that nothing was heard of it; any other error, that it isn't, and that the transaction can't be committed.
func (tx *Tx) Finish(ctx context.Context) error {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if tx.failed != nil {
		return tx.failed
	}
	if tx.finished {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return tx.failLocked(ctx, &Error{Code: status.FromContextError(err).Code(), Message: err.Error(), cause: err})
	}
	giveUp := giveUpAt(ctx)
	call, cancel := context.WithDeadline(ctx, giveUp)
	defer cancel()
	isLost := false
	for {
		_, err := tx.rpc.Finish(call, &proxypb.FinishRequest{Session: tx.session, Writes: tx.writes})
		if err == nil {
			tx.ended, tx.finished, tx.writes = true, true, nil
			return nil
		}
		failed := errorOf(ctx, err)
		switch {
		case failed.Reason == reasonSessionUnknown && isLost:
			return tx.failLocked(ctx, outcomeUnknown(tx.startTS, failed))
		case failed.Reason == reasonSessionUnknown:
			return tx.failLocked(ctx, restarted(failed))
		case failed.Code == codes.Unavailable || failed.Reason == "" || failed.Reason == reasonOtherProxy && isLost:
			// It may be sent again: what comes twice is carried out once.
			isLost = true
		case isLost && failed.Code == codes.ResourceExhausted:
		default:
			return tx.failLocked(ctx, failed)
		}
		select {
		case <-ctx.Done():
			failed.cause = ctx.Err()
		case <-time.After(commitPause):
		}
		if ctx.Err() != nil || time.Now().After(giveUp) {
			// Where it can be rolled back, it was not handed over.
			if tx.rollback(ctx) != nil {
				failed = outcomeUnknown(tx.startTS, failed)
			}
			tx.ended, tx.writes, tx.failed = true, nil, failed
			return failed
		}
	}
}

// Rollback ends the transaction without writing anything.
func (tx *Tx) Rollback(ctx context.Context) error {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	tx.ended = true
	if err := tx.rollback(ctx); err != nil {
		// It may be open still: a commit that is asked for says why not, or has all that was written.
		return tx.errorOfLocked(ctx, err)
	}
	tx.failed, tx.writes = nil, nil
	return nil
}

// Outcome returns how the transaction ended, as far as that is known.
func (tx *Tx) Outcome(ctx context.Context) (Outcome, error) {
	known, err := tx.rpc.Outcome(ctx, &proxypb.OutcomeRequest{Session: tx.session})
	if err != nil {
		return Outcome{}, errorOf(ctx, err)
	}
	return Outcome{State(known.Outcome), known.CommitTs}, nil
}

func (tx *Tx) isOpen() bool {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	// One whose writes were refused has ended, and its commit says so.
	return !tx.ended || tx.failed != nil
}

func (tx *Tx) rollBackQuietly(ctx context.Context) {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if !tx.ended {
		tx.endLocked(ctx)
	}
}

// failLocked ends the transaction, and says so if it is used all the same.
func (tx *Tx) failLocked(ctx context.Context, failed *Error) *Error {
	tx.endLocked(ctx)
	tx.failed = failed
	return failed
}

// endLocked rolls back, though the context may be done. If it can't be, the proxy does it after a while.
func (tx *Tx) endLocked(ctx context.Context) {
	tx.ended = true
	if tx.rollback(ctx) == nil {
		tx.writes = nil
	}
}

func (tx *Tx) rollback(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_, err := tx.rpc.Rollback(ctx, &proxypb.RollbackRequest{Session: tx.session})
	return err
}

func (tx *Tx) errorOf(ctx context.Context, err error) *Error {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	return tx.errorOfLocked(ctx, err)
}

func (tx *Tx) errorOfLocked(ctx context.Context, err error) *Error {
	failed := errorOf(ctx, err)
	if failed.Reason == reasonSessionUnknown && !tx.ended {
		return restarted(failed)
	}
	return failed
}
