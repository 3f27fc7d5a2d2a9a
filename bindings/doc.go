// Package bindings has the Go functions that Python calls. gopy wraps its exported functions into the extension that is
// also TensorFlow's operation library (package op). The package only controls: elements never pass through it.
//
// Arguments and results are texts (JSON for structured values), numbers and bytes. Sessions and jobs are numbers; a
// job's number is also the argument of the operation PecanJob. An error's text is JSON, {"code", "reason", "message"},
// which Python turns into an exception of the reason's class.
//
// A call may wait as long as its timeout. Python makes such calls on a separate thread, because it delivers Ctrl-C only
// between calls. A forked child of the process that loaded the object must not call any function: Python checks that
// before each call.
//
// session.go has the functions of sessions, and job.go has the functions of jobs. records.go divides large record files.
// filesize.go sums the sizes of a dataset's files and estimates their records. messages.go keeps the log until Python reads it. This file converts
// errors and arguments.
package bindings

import (
	"encoding/json"

	"github.com/pecan-ml/pecan/proto/reason"
)

// failure is an error whose text Python can decode.
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
		return reason.New(reason.BadArgument, "decode an argument from Python: %w", err)
	}
	return nil
}
