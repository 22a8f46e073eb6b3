// Package percolator is for distributed transactions with Percolator, through its proxy.
//
//	client, err := percolator.Connect("") // PERCOLATOR_PROXY, or 127.0.0.1:7490
//	if err != nil {
//		return err
//	}
//	defer client.Close()
//	err = client.Transact(ctx, func(ctx context.Context, tx *percolator.Tx) error {
//		value, err := tx.Get(ctx, "accounts", "bob", "balance")
//		if err != nil {
//			return err
//		}
//		return tx.Put(ctx, "accounts", "joe", "balance", value)
//	})
//
// Rows and columns are strings of any bytes; they need not be UTF-8.
package percolator

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"percolator.dev/percolator/internal/proxypb"
)

// DefaultAddress is where the proxy of percolator up listens.
const DefaultAddress = "127.0.0.1:7490"

// AddressVariable names the environment variable that may name another address.
const AddressVariable = "PERCOLATOR_PROXY"

const (
	// Between two attempts of a transaction: the first pause and the longest.
	pauseFirst = 2 * time.Millisecond
	pauseMax   = 200 * time.Millisecond
	// When a connection on which nothing comes is asked whether there is anybody, and how long that may take.
	keepaliveAfter   = 10 * time.Second
	keepaliveTimeout = 10 * time.Second
	// How long a proxy is tried at its own address, and for how long it is remembered that it can't be reached there.
	reachTimeout     = time.Second
	unreachableAgain = 30 * time.Second
	// When a proxy is forgotten at which no session has begun.
	forgetAfter = 2 * time.Hour
)

// How long an answer is awaited, a transaction tried again, and a commit asked for whose answer was lost, if the context has no
// deadline.
var retryFor = 30 * time.Second

// named is the connection to a proxy at its own address.
type named struct {
	conn *grpc.ClientConn
	// When a session there was begun last.
	used time.Time
}

// Client is a client of a proxy, or of several behind one address. It may be used by many goroutines.
type Client struct {
	address string
	options []grpc.DialOption
	conn    *grpc.ClientConn

	mu sync.Mutex
	// Of the proxies that sessions are on, by their own addresses.
	proxies map[string]*named
	// Those that can't be reached there, and when they may be tried again.
	unreachable map[string]time.Time
}

// Connect returns a client of the proxy at this address, HOST:PORT. An empty address is the one that the environment variable
// PERCOLATOR_PROXY has, or that of percolator up. Nothing is sent before the first transaction.
//
// Options are those of gRPC, for example credentials; without any the connection isn't encrypted.
//
// A call whose context has no deadline is given up after 30 s, with ErrUnavailable; of Commit and Finish it is ErrOutcomeUnknown where
// that isn't known.
func Connect(address string, options ...grpc.DialOption) (*Client, error) {
	if address == "" {
		address = os.Getenv(AddressVariable)
	}
	if address == "" {
		address = DefaultAddress
	}
	// As `percolator up` prints it.
	address = strings.TrimSuffix(strings.TrimPrefix(address, "http://"), "/")
	options = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveAfter, Timeout: keepaliveTimeout}),
		grpc.WithChainUnaryInterceptor(bounded),
	}, options...)
	conn, err := grpc.NewClient(address, options...)
	if err != nil {
		return nil, err
	}
	return &Client{
		address:     address,
		options:     options,
		conn:        conn,
		proxies:     map[string]*named{},
		unreachable: map[string]time.Time{},
	}, nil
}

// bounded gives a call a deadline that has none: a proxy may be there and not answer. Any other ends as its context says.
func bounded(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, retryFor)
		defer cancel()
	}
	return invoke(ctx, method, request, reply, conn, options...)
}

// giveUpAt is the context's deadline, or when what begins now is given up without one.
func giveUpAt(ctx context.Context) time.Time {
	if deadline, ok := ctx.Deadline(); ok {
		return deadline
	}
	return time.Now().Add(retryFor)
}

// Close closes the connections. Transactions that are open are rolled back by their proxies after a while.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	errs := []error{c.conn.Close()}
	for _, proxy := range c.proxies {
		errs = append(errs, proxy.conn.Close())
	}
	return errors.Join(errs...)
}

// CreateTable makes a table, cut into tablets at these rows; without any it has one, which is split when it grows.
// ErrAlreadyExists: there is one already, perhaps made by an earlier call that was not answered.
func (c *Client) CreateTable(ctx context.Context, table string, splitAt ...string) error {
	request := &proxypb.CreateTableRequest{Table: table}
	for _, row := range splitAt {
		request.SplitAt = append(request.SplitAt, []byte(row))
	}
	if _, err := proxypb.NewTransactionsClient(c.conn).CreateTable(ctx, request); err != nil {
		return errorOf(ctx, err)
	}
	return nil
}

// CellName names a cell of a table.
type CellName struct {
	Table, Row, Column string
}

// BeginOption is an option of a transaction.
type BeginOption func(*proxypb.BeginRequest)

// AtSnapshot makes a transaction that reads at the timestamp of an earlier one, and can't write.
func AtSnapshot(ts uint64) BeginOption {
	return func(request *proxypb.BeginRequest) { request.Snapshot = ts }
}

// WithCells reads cells at once, which saves the call of a BatchGet: Tx.Values has their values.
func WithCells(cells ...CellName) BeginOption {
	return func(request *proxypb.BeginRequest) {
		request.Cells = append(request.Cells, names(cells)...)
	}
}

// Begin begins a transaction, which has to be ended by Commit or Rollback. Transact does that by itself.
func (c *Client) Begin(ctx context.Context, options ...BeginOption) (*Tx, error) {
	request := &proxypb.BeginRequest{}
	for _, option := range options {
		option(request)
	}
	begun, err := proxypb.NewTransactionsClient(c.conn).Begin(ctx, request)
	if err != nil {
		return nil, errorOf(ctx, err)
	}
	return c.open(ctx, begun.Session, begun.StartTs, begun.Values), nil
}

func (c *Client) open(ctx context.Context, session string, startTS uint64, read []*proxypb.GetResponse) *Tx {
	rpc := proxypb.NewTransactionsClient(c.proxy(ctx, session))
	return &Tx{rpc: rpc, session: session, startTS: startTS, values: values(read)}
}

// Join joins a transaction that another client has begun, by its Token. The participant has a snapshot with the others, and sees
// of their writes nothing. It ends with Finish; the client that began the transaction commits it with what all participants have written.
// A participant that ends otherwise, or has not finished then, aborts it; as do two that write one cell. The
// values of the cells are in Values.
func (c *Client) Join(ctx context.Context, token string, cells ...CellName) (*Tx, error) {
	return c.join(ctx, c.proxy(ctx, token), token, cells)
}

// JoinHere is Join at the proxy that the client has, and not at that which the token names: it has to be one that may reach
// that proxy.
func (c *Client) JoinHere(ctx context.Context, token string, cells ...CellName) (*Tx, error) {
	return c.join(ctx, c.conn, token, cells)
}

func (c *Client) join(ctx context.Context, at *grpc.ClientConn, token string, cells []CellName) (*Tx, error) {
	request := &proxypb.JoinRequest{Session: token, Cells: names(cells)}
	joined, err := proxypb.NewTransactionsClient(at).Join(ctx, request)
	if err != nil {
		return nil, errorOf(ctx, err)
	}
	return c.open(ctx, joined.Session, joined.StartTs, joined.Values), nil
}

// Transact calls a function with a transaction and commits it. If the function returns an error, or panics, the transaction
// is rolled back.
//
// The function is called again with a new transaction after ErrAborted and ErrUnavailable, which say that nothing is
// committed, until the context is done, or for 30 s if it has no deadline. So it should do nothing beside the transaction that may not happen
// twice. ErrOutcomeUnknown is returned at once.
func (c *Client) Transact(
	ctx context.Context, f func(ctx context.Context, tx *Tx) error, options ...BeginOption,
) error {
	giveUp := giveUpAt(ctx)
	for pause := pauseFirst; ; pause = min(2*pause, pauseMax) {
		err := c.transactOnce(ctx, f, options)
		if !errors.Is(err, ErrAborted) && !errors.Is(err, ErrUnavailable) {
			return err
		}
		// Those that were in each other's way don't meet again at the same time.
		wait := rand.N(pause)
		if time.Now().Add(wait).After(giveUp) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

func (c *Client) transactOnce(
	ctx context.Context, f func(context.Context, *Tx) error, options []BeginOption,
) (err error) {
	tx, err := c.Begin(ctx, options...)
	if err != nil {
		return err
	}
	returned := false
	defer func() {
		if !returned || err != nil {
			tx.rollBackQuietly(ctx)
		}
	}()
	err = f(ctx, tx)
	returned = true
	if err == nil && tx.isOpen() {
		_, err = tx.Commit(ctx)
	}
	return err
}

// proxy is the connection to the proxy that has a session: at its own address if the token names one that can be reached, and
// else that of the client.
func (c *Client) proxy(ctx context.Context, session string) *grpc.ClientConn {
	address := proxyOf(session)
	if _, port, err := net.SplitHostPort(address); err != nil || port == "" || address == c.address {
		return c.conn
	}
	c.mu.Lock()
	if known, ok := c.proxies[address]; ok {
		defer c.mu.Unlock()
		known.used = time.Now()
		return known.conn
	}
	again, tried := c.unreachable[address]
	c.mu.Unlock()
	if tried && time.Now().Before(again) {
		return c.conn
	}
	conn, err := grpc.NewClient(address, c.options...)
	if err != nil {
		return c.conn
	}
	reached := reach(ctx, conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	if other, known := c.proxies[address]; known || !reached {
		conn.Close()
		if known {
			return other.conn
		}
		c.unreachable[address] = time.Now().Add(unreachableAgain)
		return c.conn
	}
	delete(c.unreachable, address)
	for gone, other := range c.proxies {
		// No session lasts so long: pods come and go, each with an address of its own.
		if time.Since(other.used) > forgetAfter {
			other.conn.Close()
			delete(c.proxies, gone)
		}
	}
	c.proxies[address] = &named{conn, time.Now()}
	return conn
}

func reach(ctx context.Context, conn *grpc.ClientConn) bool {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		if state == connectivity.TransientFailure || !conn.WaitForStateChange(ctx, state) {
			return false
		}
	}
	return true
}

// proxyOf is the proxy that a token names: START_TS.PROXY.SECRET.
func proxyOf(session string) string {
	_, rest, _ := strings.Cut(session, ".")
	if end := strings.LastIndexByte(rest, '.'); end >= 0 {
		return rest[:end]
	}
	return ""
}

func names(cells []CellName) []*proxypb.CellName {
	made := make([]*proxypb.CellName, len(cells))
	for at, cell := range cells {
		made[at] = &proxypb.CellName{Table: cell.Table, Row: []byte(cell.Row), Column: []byte(cell.Column)}
	}
	return made
}

func values(read []*proxypb.GetResponse) [][]byte {
	made := make([][]byte, len(read))
	for at, each := range read {
		made[at] = each.Value
	}
	return made
}
