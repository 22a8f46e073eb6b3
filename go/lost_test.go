package percolator_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

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

func (f *fake) Get(context.Context, *proxypb.GetRequest) (*proxypb.GetResponse, error) {
	f.note("get")
	return &proxypb.GetResponse{}, nil
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

func (f *fake) Commit(context.Context, *proxypb.CommitRequest) (*proxypb.CommitResponse, error) {
	f.note("commit")
	f.mu.Lock()
	defer f.mu.Unlock()
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

func begin(t *testing.T, proxy *fake) *percolator.Tx {
	t.Helper()
	client, err := percolator.Connect(serve(t, proxy))
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

func (f *fake) Finish(context.Context, *proxypb.FinishRequest) (*proxypb.FinishResponse, error) {
	f.note("finish")
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
