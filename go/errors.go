package percolator

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What an error says, for errors.Is.
var (
	// ErrAborted: nothing is committed, and the whole transaction may be tried again.
	ErrAborted = errors.New("aborted")
	// ErrOutcomeUnknown: the answer to the commit was lost, and the transaction may be committed. Tx.Outcome asks.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrNotFound: there is no such table.
	ErrNotFound = errors.New("not found")
	// ErrAlreadyExists: there is such a table already.
	ErrAlreadyExists = errors.New("already exists")
	// ErrInvalidArgument: the call has no meaning, or breaks a limit of the data.
	ErrInvalidArgument = errors.New("invalid argument")
	// ErrFailedPrecondition: the transaction has ended, or the proxy doesn't know it.
	ErrFailedPrecondition = errors.New("failed precondition")
	// ErrResourceExhausted: a limit of the proxy's is reached.
	ErrResourceExhausted = errors.New("resource exhausted")
	// ErrUnavailable: the proxy, or the cluster behind it, doesn't answer. Of a commit: nothing is committed.
	ErrUnavailable = errors.New("unavailable")
)

const (
	reasonOutcomeUnknown = "OUTCOME_UNKNOWN"
	reasonSessionUnknown = "SESSION_UNKNOWN"
	reasonCommitting     = "COMMITTING"
	reasonOtherProxy     = "OTHER_PROXY"
	reasonInvalid        = "INVALID"
)

// Error is a call that failed.
type Error struct {
	// Code says what to do. It is that of gRPC.
	Code codes.Code
	// Reason says why: one of those in docs/proxy.md. It is empty if the proxy hasn't answered, INVALID also if it was never asked.
	Reason string
	// Message is for people.
	Message string
	// Metadata has what the reason is about, for example the cell of a conflict.
	Metadata map[string]string
	cause    error
}

func (e *Error) Error() string {
	if e.Reason == "" {
		return e.Message
	}
	return fmt.Sprintf("%s (%s)", e.Message, e.Reason)
}

// Unwrap returns the error of the context, if that ended the call.
func (e *Error) Unwrap() error { return e.cause }

// Is says whether target is the error's kind, for example ErrAborted.
func (e *Error) Is(target error) bool {
	if e.Reason == reasonOutcomeUnknown {
		return target == ErrOutcomeUnknown
	}
	switch e.Code {
	case codes.Aborted:
		return target == ErrAborted
	case codes.NotFound:
		return target == ErrNotFound
	case codes.AlreadyExists:
		return target == ErrAlreadyExists
	case codes.InvalidArgument:
		return target == ErrInvalidArgument
	case codes.FailedPrecondition:
		return target == ErrFailedPrecondition
	case codes.ResourceExhausted:
		return target == ErrResourceExhausted
	case codes.Unavailable:
		return target == ErrUnavailable
	}
	return false
}

// errorOf is the error of a call, by the status that it ended with.
func errorOf(ctx context.Context, err error) *Error {
	known := status.Convert(err)
	made := &Error{Code: known.Code(), Message: known.Message()}
	for _, detail := range known.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			made.Reason, made.Metadata = info.Reason, info.Metadata
		}
	}
	if made.Reason != "" {
		return made
	}
	if isTooLarge(known) {
		made.Code, made.Reason = codes.InvalidArgument, reasonInvalid
		return made
	}
	made.cause = ctx.Err()
	_, hasDeadline := ctx.Deadline()
	if made.cause == nil && !hasDeadline && (made.Code == codes.DeadlineExceeded || made.Code == codes.Canceled) {
		// The caller has ended nothing: it was given up here, or by something between.
		made.Code, made.Message = codes.Unavailable, "the proxy doesn't answer: "+made.Message
	}
	return made
}

// isTooLarge says whether a call without an answer was refused for its size, so that nothing of it was carried out.
func isTooLarge(known *status.Status) bool {
	switch known.Code() {
	case codes.OutOfRange:
		// By the proxy, which reads no message that is so large.
		return true
	case codes.ResourceExhausted:
		// By gRPC here, if an option of Connect sets a limit. Of others without a reason nothing is known.
		return strings.HasPrefix(known.Message(), "trying to send message larger than max")
	}
	return false
}

// tooLarge is the error of a row, a column or a value beyond its limit; nil if it isn't.
func tooLarge(name string, bytes, most int) *Error {
	if bytes <= most {
		return nil
	}
	message := fmt.Sprintf("the %s is %d bytes long, the limit is %d", name, bytes, most)
	return &Error{Code: codes.InvalidArgument, Reason: reasonInvalid, Message: message}
}

// outcomeUnknown is the error of a commit that was sent and not answered.
func outcomeUnknown(startTS uint64, why *Error) *Error {
	return &Error{
		Code:     codes.Unknown,
		Reason:   reasonOutcomeUnknown,
		Message:  fmt.Sprintf("the answer was lost: the transaction may be committed: %s", why.Message),
		Metadata: map[string]string{"start_ts": fmt.Sprint(startTS)},
		cause:    why.cause,
	}
}

// restarted is the error of a session that its proxy doesn't know, and whose commit was never asked for.
func restarted(gone *Error) *Error {
	return &Error{
		Code:     codes.Aborted,
		Reason:   gone.Reason,
		Message:  "the proxy was started again: nothing of the transaction is committed",
		Metadata: gone.Metadata,
	}
}
