// Package bindings is the part of Pecan that Python calls: gopy wraps its exported functions into the extension that is
// also TensorFlow's operation library (package op). It is a control surface only; elements never pass through it.
//
// Arguments and results are texts (JSON for anything with parts), numbers and bytes. A session and a job are numbers: a
// job's is also what the operation PecanJob takes. An error's text is JSON, {"code", "reason", "message"}, which
// Python turns into an exception of the class that belongs to the reason.
//
// A call may wait as long as the timeout it was given. Python makes such calls on a thread of their own, since it
// delivers Ctrl-C only between calls. No function here may be called in a process that was forked off the one that
// loaded the object: Python checks that before it calls.
package bindings

import (
	"encoding/json"

	"github.com/pecan-ml/pecan/proto/reason"
)

// failure is an error whose text Python can take apart.
type failure struct{ cause *reason.Error }

func (f failure) Error() string {
	text, err := json.Marshal(map[string]any{
		"code": int(f.cause.Code()), "reason": string(f.cause.Reason), "message": f.cause.Message,
	})
	if err != nil {
		return f.cause.Message
	}
	return string(text)
}

func (f failure) Unwrap() error { return f.cause }

func failed(err error) error {
	if err == nil {
		return nil
	}
	return failure{cause: reason.From(err)}
}

func encode(value any) (string, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return "", failed(reason.New(reason.Internal, "encode an answer for Python: %w", err))
	}
	return string(text), nil
}

func decode(text string, into any) error {
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return reason.New(reason.BadArgument, "decode what Python sent: %w", err)
	}
	return nil
}
