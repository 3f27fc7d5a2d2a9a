package run

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/graph/split"
	"google.golang.org/grpc/codes"
)

// notVisible matches the messages of TensorFlow's file systems for a file that cannot be opened.
var notVisible = regexp.MustCompile(`(\S+); (No such file or directory|Permission denied|Is a directory|Stale file handle|Transport endpoint is not connected)`)

// notNamed matches TensorFlow's messages about the content of a record file, which do not name the file. The first one
// comes from the assertion of the number of records in an extent.
var notNamed = regexp.MustCompile(`Input dataset was expected to contain \d+ elements|(corrupted|truncated) record at \d+`)

// filesRead says which files a stream reads, for messages that do not name the file. It returns "" if they are not known.
func (r *run) filesRead() string {
	const most = 3
	files := r.files()
	if len(files) == 0 {
		return ""
	}
	list := strings.Join(files[:min(most, len(files))], ", ")
	if len(files) > most {
		list += fmt.Sprintf(" and %d more", len(files)-most)
	}
	return fmt.Sprintf(". The stream reads %s: if a file has changed, apply distribute() again", list)
}

// files returns the files that the stream reads, in order; nil if they are not known.
func (r *run) files() []string {
	return r.stream.streams.Graphs.Files(r.ctx, r.command.GetFingerprint(), r.command.GetPlan(), split.EpochStream{
		Stream: int(r.stream.key.Stream), Epoch: r.stream.key.Epoch, Seed: r.command.GetOptions().GetSeed(),
	})
}

// elementFailure is the error of an element that could not be produced, with TensorFlow's message and code.
func (r *run) elementFailure(index uint64, err *tf.Error) *reason.Error {
	if found := notVisible.FindStringSubmatch(err.Message); found != nil {
		return reason.WithCode(reason.FileNotVisible, codes.Code(err.Code), fmt.Sprintf(
			"worker %s cannot read %s (%s): give it the same files as the trainer, at the same path (a shared directory or a mounted bucket). TensorFlow says: %s",
			r.stream.streams.Identity, strings.TrimSpace(found[1]), found[2], err.Message))
	}
	where := ""
	if notNamed.MatchString(err.Message) {
		where = r.filesRead()
	}
	return reason.WithCode(reason.ElementFailed, codes.Code(err.Code), fmt.Sprintf(
		"element %d of stream %d failed on worker %s: %s%s", index, r.stream.key.Stream, r.stream.streams.Identity, err.Message, where))
}

// transient reports whether an error of this code says nothing of the element: the same element may succeed later.
func transient(code codes.Code) bool {
	switch code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Aborted, codes.Canceled, codes.PermissionDenied:
		return true
	}
	return false
}

// runFailure is the error of a run whose graph cannot be opened, or whose iterator fails for good.
func (r *run) runFailure(err error) *reason.Error {
	if own := (*reason.Error)(nil); errors.As(err, &own) {
		return own
	}
	if failed := (*tf.Error)(nil); errors.As(err, &failed) {
		if found := notVisible.FindStringSubmatch(failed.Message); found != nil {
			return r.elementFailure(0, failed)
		}
		return reason.WithCode(reason.GraphStructure, codes.Code(failed.Code), fmt.Sprintf(
			"worker %s cannot run the dataset's graph with TensorFlow %s: %s", r.stream.streams.Identity, tf.Version(), failed.Message))
	}
	if known := reason.From(err); known.Reason != reason.Internal {
		return known
	}
	return reason.New(reason.Internal, "start stream %d on worker %s: %w", r.stream.key.Stream, r.stream.streams.Identity, err)
}

// checkElement compares an element with the registered spec.
func checkElement(index uint64, element []*tf.Tensor, specs []*pecanv1.ComponentSpec, maxBytes int64) *reason.Error {
	if len(specs) > 0 && len(element) != len(specs) {
		return reason.New(reason.ElementSpec, "element %d has %d components, its element spec has %d", index, len(element), len(specs))
	}
	total, table := int64(0), 16
	for i, t := range element {
		if t.DType() != tf.String && frame.Width(uint32(t.DType())) == 0 {
			return reason.New(reason.ElementSpec, "component %d of element %d is %s, which cannot be sent", i, index, frame.DTypeName(uint32(t.DType())))
		}
		if len(specs) > 0 && !matches(t, specs[i]) {
			return reason.New(reason.ElementSpec, "component %d of element %d is %s of shape %v, its element spec says %s of shape %s",
				i, index, frame.DTypeName(uint32(t.DType())), t.Dims(), frame.DTypeName(uint32(specs[i].GetDtype())), specs[i].ShapeText())
		}
		total += t.WireSize()
		table += 16 + 8*len(t.Dims())
	}
	if len(element) > frame.MaxComponents || table > frame.MaxMeta {
		return reason.New(reason.ElementSpec, "element %d has %d components of too many dimensions to be described in %d bytes", index, len(element), frame.MaxMeta)
	}
	if total > maxBytes {
		return reason.New(reason.ElementTooLarge,
			"element %d has %d bytes, the limit is %d: raise max_element_bytes of the job, or make elements smaller (a smaller batch)", index, total, maxBytes)
	}
	return nil
}

func matches(t *tf.Tensor, spec *pecanv1.ComponentSpec) bool {
	return t.DType() == tf.DataType(spec.GetDtype()) && pecanv1.ShapeFits(spec, t.Dims())
}
