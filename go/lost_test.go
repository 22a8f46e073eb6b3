package percolator_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"percolator.dev/percolator"
	"percolator.dev/percolator/internal/proxypb"
)

// fake is something in the place of a proxy, whose commits are answered from a list.
type fake struct {
	proxypb.UnimplementedTransactionsServer
	session string

	mu      sync.Mutex
	commits []error
	calls   []string
	refuses error
	// Of rollbacks, as many as are to fail.
	rollbacks []error
	// How many writes came with each commit.
	written []int
	// It takes calls, and answers none but Begin and Rollback.
	silent bool
}

// silence is the end of a call that isn't answered.
func (f *fake) silence(ctx context.Context) error {
	if !f.silent {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (f *fake) note(call string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call)
}

func (f *fake) Begin(context.Context, *proxypb.BeginRequest) (*proxypb.BeginResponse, error) {
	return &proxypb.BeginResponse{Session: f.session, StartTs: 7}, nil
}

func (f *fake) Write(context.Context, *proxypb.WriteRequest) (*proxypb.WriteResponse, error) {
	f.note("write")
	return &proxypb.WriteResponse{}, f.refuses
}

func (f *fake) Get(ctx context.Context, _ *proxypb.GetRequest) (*proxypb.GetResponse, error) {
	f.note("get")
	return &proxypb.GetResponse{}, f.silence(ctx)
}

func (f *fake) Scan(_ *proxypb.ScanRequest, stream grpc.ServerStreamingServer[proxypb.ScanResponse]) error {
	f.note("scan")
	return f.silence(stream.Context())
}

func (f *fake) Rollback(context.Context, *proxypb.RollbackRequest) (*proxypb.RollbackResponse, error) {
	f.note("rollback")
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.rollbacks) == 0 {
		return &proxypb.RollbackResponse{}, nil
	}
	next := f.rollbacks[0]
	f.rollbacks = f.rollbacks[1:]
	return nil, next
}

func (f *fake) Commit(ctx context.Context, request *proxypb.CommitRequest) (*proxypb.CommitResponse, error) {
	f.note("commit")
	if err := f.silence(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.written = append(f.written, len(request.Writes))
	if len(f.commits) == 0 {
		return &proxypb.CommitResponse{CommitTs: 9}, nil
	}
	next := f.commits[0]
	f.commits = f.commits[1:]
	return nil, next
}

// lost is what a caller sees of a connection that is lost.
var lost = status.Error(codes.Unavailable, "the connection was lost")

func answered(code codes.Code, reason string) error {
	info := &errdetails.ErrorInfo{Reason: reason, Domain: "percolator.dev"}
	made, err := status.New(code, "it says so").WithDetails(info)
	if err != nil {
		panic(err)
	}
	return made.Err()
}

func serve(t *testing.T, proxy *fake) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := grpc.NewServer()
	proxypb.RegisterTransactionsServer(server, proxy)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

// tooLarge is what a proxy says of a message that it doesn't read.
var tooLarge = status.Error(codes.OutOfRange, "Error, decoded message length too large")

func begin(t *testing.T, proxy *fake, options ...grpc.DialOption) *percolator.Tx {
	t.Helper()
	client, err := percolator.Connect(serve(t, proxy), options...)
	must(t, err)
	t.Cleanup(func() { client.Close() })
	tx, err := client.Begin(t.Context())
	must(t, err)
	return tx
}

func TestACommitWhoseAnswerIsLost(t *testing.T) {
	full, committing := answered(codes.ResourceExhausted, "BYTES"), answered(codes.Unavailable, "COMMITTING")
	unknown := answered(codes.FailedPrecondition, "SESSION_UNKNOWN")
	for name, each := range map[string]struct {
		answers []error
		kind    error
	}{
		"is asked for again":                        {[]error{lost, committing}, nil},
		"may be committed if the proxy is another":  {[]error{lost, unknown}, percolator.ErrOutcomeUnknown},
		"was never sent to a proxy of before":       {[]error{unknown}, percolator.ErrAborted},
		"is refused by a full proxy the first time": {[]error{full}, percolator.ErrResourceExhausted},
		"says nothing if the proxy is full then":    {[]error{lost, full}, nil},
		"is an answer if the cluster is away":       {[]error{lost, answered(codes.Unavailable, "UNAVAILABLE")}, percolator.ErrUnavailable},
		"is unknown if the proxy says so":           {[]error{answered(codes.Unknown, "OUTCOME_UNKNOWN")}, percolator.ErrOutcomeUnknown},
		"is refused if it is too large":             {[]error{tooLarge}, percolator.ErrInvalidArgument},
		// It isn't said by the proxy.
		"is asked for again if something between is full": {[]error{status.Error(codes.ResourceExhausted, "full")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			commitTS, err := begin(t, &fake{session: "session", commits: each.answers}).Commit(t.Context())
			if each.kind == nil && (err != nil || commitTS != 9) || each.kind != nil && !errors.Is(err, each.kind) {
				t.Errorf("%d, %v", commitTS, err)
			}
		})
	}
}

func TestAWriteThatIsRefusedSaysNothingOfACommitThatWasSentBefore(t *testing.T) {
	away := answered(codes.Unavailable, "UNAVAILABLE")
	for name, each := range map[string]struct {
		rollbacks []error
		kind      error
	}{
		"unless that can be rolled back":    {nil, percolator.ErrUnavailable},
		"where it has begun since":          {[]error{answered(codes.Unavailable, "COMMITTING")}, nil},
		"where nothing is heard of its end": {[]error{lost}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			tx := begin(t, &fake{session: "session", commits: []error{lost, away}, rollbacks: each.rollbacks})
			must(t, tx.Put(t.Context(), "t", "a", "c", nil))
			commitTS, err := tx.Commit(t.Context())
			if each.kind == nil && (err != nil || commitTS != 9) || each.kind != nil && !errors.Is(err, each.kind) {
				t.Errorf("%d, %v", commitTS, err)
			}
		})
	}
}

func TestWhatMayBeCommittedIsNotSaidToBeAbortedLater(t *testing.T) {
	unknown := answered(codes.FailedPrecondition, "SESSION_UNKNOWN")
	tx := begin(t, &fake{session: "session", commits: []error{answered(codes.Unknown, "OUTCOME_UNKNOWN"), unknown}})
	for range 2 {
		if _, err := tx.Commit(t.Context()); !errors.Is(err, percolator.ErrOutcomeUnknown) {
			t.Errorf("%v", err)
		}
	}
	// What is known needs no proxy.
	proxy := &fake{session: "session"}
	tx = begin(t, proxy)
	for range 2 {
		if commitTS, err := tx.Commit(t.Context()); err != nil || commitTS != 9 {
			t.Errorf("%d, %v", commitTS, err)
		}
		proxy.commits = []error{unknown}
	}
	proxy = &fake{session: "session"}
	tx = begin(t, proxy)
	for range 2 {
		must(t, tx.Finish(t.Context()))
		proxy.commits = []error{unknown}
	}
	// An answer by which nothing has begun is none of a commit that was sent.
	tx = begin(t, &fake{session: "session", commits: []error{answered(codes.ResourceExhausted, "BYTES"), unknown}})
	for _, kind := range []error{percolator.ErrResourceExhausted, percolator.ErrAborted} {
		if _, err := tx.Commit(t.Context()); !errors.Is(err, kind) {
			t.Errorf("%v", err)
		}
	}
}

func TestACommitThatIsAskedForAgainHasItsWrites(t *testing.T) {
	proxy := &fake{
		session:   "session",
		commits:   []error{answered(codes.Unknown, "OUTCOME_UNKNOWN")},
		rollbacks: []error{lost},
	}
	tx := begin(t, proxy)
	must(t, tx.Put(t.Context(), "t", "a", "c", nil))
	if _, err := tx.Commit(t.Context()); !errors.Is(err, percolator.ErrOutcomeUnknown) {
		t.Error(err)
	}
	if err := tx.Rollback(t.Context()); !errors.Is(err, percolator.ErrUnavailable) {
		t.Error(err)
	}
	if commitTS, err := tx.Commit(t.Context()); err != nil || commitTS != 9 {
		t.Errorf("%d, %v", commitTS, err)
	}
	if !slices.Equal(proxy.written, []int{1, 1}) {
		t.Error(proxy.written)
	}
}

func TestACommitWhoseContextWasDoneIsNotSentWithoutItsWrites(t *testing.T) {
	proxy := &fake{session: "session", rollbacks: []error{lost}}
	tx := begin(t, proxy)
	must(t, tx.Put(t.Context(), "t", "a", "c", nil))
	done, cancel := context.WithCancel(t.Context())
	cancel()
	for _, ctx := range []context.Context{done, t.Context()} {
		if _, err := tx.Commit(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, percolator.ErrOutcomeUnknown) {
			t.Error(err)
		}
	}
	if !slices.Equal(proxy.calls, []string{"rollback"}) {
		t.Error(proxy.calls)
	}
}

func TestAProxyThatDoesNotAnswerIsGivenUp(t *testing.T) {
	for name, each := range map[string]struct {
		call func(tx *percolator.Tx) error
		kind error
	}{
		"at a read": {func(tx *percolator.Tx) error {
			_, err := tx.Get(t.Context(), "t", "a", "c")
			return err
		}, percolator.ErrUnavailable},
		"at a scan": {func(tx *percolator.Tx) error {
			for _, err := range tx.Scan(t.Context(), "t", percolator.Range{}) {
				return err
			}
			return nil
		}, percolator.ErrUnavailable},
		"at a commit": {func(tx *percolator.Tx) error {
			_, err := tx.Commit(t.Context())
			return err
		}, percolator.ErrOutcomeUnknown},
		// It can be rolled back.
		"at the end of a participant": {func(tx *percolator.Tx) error { return tx.Finish(t.Context()) }, percolator.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			tx := begin(t, &fake{session: "session", silent: true})
			percolator.GiveUpAfter(t, 100*time.Millisecond)
			if err := each.call(tx); !errors.Is(err, each.kind) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestWhatIsTooLargeIsRefusedAtOnce(t *testing.T) {
	for name, put := range map[string]func(tx *percolator.Tx) error{
		"row":    func(tx *percolator.Tx) error { return tx.Delete(t.Context(), "t", strings.Repeat("a", 4097), "c") },
		"column": func(tx *percolator.Tx) error { return tx.Put(t.Context(), "t", "a", strings.Repeat("c", 1025), nil) },
		"value":  func(tx *percolator.Tx) error { return tx.Put(t.Context(), "t", "a", "c", make([]byte, 4<<20+1)) },
	} {
		t.Run(name, func(t *testing.T) {
			proxy := &fake{session: "session"}
			tx := begin(t, proxy)
			must(t, tx.Put(t.Context(), "t", strings.Repeat("a", 4096), strings.Repeat("c", 1024), make([]byte, 4<<20)))
			if err := put(tx); !errors.Is(err, percolator.ErrInvalidArgument) || !strings.Contains(err.Error(), name) {
				t.Errorf("%v", err)
			}
			// A program that goes on all the same doesn't commit without it.
			if _, err := tx.Commit(t.Context()); !errors.Is(err, percolator.ErrInvalidArgument) {
				t.Errorf("%v", err)
			}
			if !slices.Equal(proxy.calls, []string{"rollback"}) {
				t.Error(proxy.calls)
			}
		})
	}
	// By a limit that the program has set itself.
	tx := begin(t, &fake{session: "session"}, grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(1024)))
	must(t, tx.Put(t.Context(), "t", "a", "c", make([]byte, 2048)))
	if _, err := tx.Commit(t.Context()); !errors.Is(err, percolator.ErrInvalidArgument) {
		t.Errorf("%v", err)
	}
}

func TestWritesWhoseAnswerIsLostAreNotSentAgain(t *testing.T) {
	proxy := &fake{session: "session", refuses: lost}
	tx := begin(t, proxy)
	must(t, tx.Put(t.Context(), "t", "a", "c", nil))
	if _, err := tx.Get(t.Context(), "t", "a", "c"); !errors.Is(err, percolator.ErrUnavailable) {
		t.Error(err)
	}
	if _, err := tx.Commit(t.Context()); !errors.Is(err, percolator.ErrUnavailable) {
		t.Error(err)
	}
	if len(proxy.calls) != 2 || proxy.calls[1] != "rollback" {
		t.Error(proxy.calls)
	}
}

func (f *fake) Finish(ctx context.Context, _ *proxypb.FinishRequest) (*proxypb.FinishResponse, error) {
	f.note("finish")
	if err := f.silence(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.commits) == 0 {
		return &proxypb.FinishResponse{}, nil
	}
	next := f.commits[0]
	f.commits = f.commits[1:]
	return nil, next
}

func TestAParticipantWhoseAnswerIsLost(t *testing.T) {
	unknown := answered(codes.FailedPrecondition, "SESSION_UNKNOWN")
	for name, each := range map[string]struct {
		answers []error
		kind    error
	}{
		"is asked for again":                    {[]error{lost, answered(codes.Unavailable, "COMMITTING")}, nil},
		"may be handed over":                    {[]error{lost, unknown}, percolator.ErrOutcomeUnknown},
		"was never sent to a proxy of before":   {[]error{unknown}, percolator.ErrAborted},
		"is refused":                            {[]error{answered(codes.ResourceExhausted, "SESSION_BYTES")}, percolator.ErrResourceExhausted},
		"is refused if it is too large":         {[]error{tooLarge}, percolator.ErrInvalidArgument},
		"is aborted with the whole transaction": {[]error{lost, answered(codes.Aborted, "MANAGER_GONE")}, percolator.ErrAborted},
	} {
		t.Run(name, func(t *testing.T) {
			tx := begin(t, &fake{session: "session", commits: each.answers})
			must(t, tx.Put(t.Context(), "t", "a", "c", nil))
			// Once it has failed, a second call says the same.
			for range 2 {
				err := tx.Finish(t.Context())
				if each.kind == nil && err != nil || each.kind != nil && !errors.Is(err, each.kind) {
					t.Errorf("%v", err)
				}
			}
		})
	}
}

func TestAContextThatEndsDuringACommit(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	proxy := &fake{session: "session"}
	tx := begin(t, proxy)
	must(t, tx.Put(ctx, "t", "a", "c", nil))
	proxy.commits = []error{lost, lost, lost}
	go func() {
		for {
			proxy.mu.Lock()
			sent := len(proxy.calls) > 0
			proxy.mu.Unlock()
			if sent {
				cancel()
				return
			}
		}
	}()
	_, err := tx.Commit(ctx)
	if !errors.Is(err, percolator.ErrOutcomeUnknown) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestASessionIsUsedAtTheProxyThatItNames(t *testing.T) {
	named := &fake{}
	balancer := &fake{session: "7." + serve(t, named) + ".0123456789abcdef0123456789abcdef"}
	tx := begin(t, balancer)
	_, err := tx.Commit(t.Context())
	must(t, err)
	if len(named.calls) != 1 || len(balancer.calls) != 0 {
		t.Errorf("%v and %v", named.calls, balancer.calls)
	}
	// From where that can't be reached, at the address that the client has.
	alone := &fake{session: "7.127.0.0.1:1.0123456789abcdef0123456789abcdef"}
	_, err = begin(t, alone).Commit(t.Context())
	must(t, err)
	if len(alone.calls) != 1 {
		t.Errorf("%v", alone.calls)
	}
}
