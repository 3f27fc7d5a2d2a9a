package validate

import (
	"regexp"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

const (
	// MaxRequestBytes bounds every message; graphs come in chunks.
	MaxRequestBytes = 16 << 20
	MaxChunkBytes   = 4 << 20
	// maxElementBytes is the limit, and the default, of an element's size.
	maxElementBytes = 2 << 30
	maxIDBytes      = 128
	maxTextBytes    = 4 << 10
	maxComponents   = 1 << 16
	maxSpecBytes    = 4 << 20
	// maxSlots is the largest number of streams that a worker runs at once.
	maxSlots = 4096
	// MaxStreams is the largest number of streams of a plan.
	MaxStreams = 1 << 16
	MaxListed  = 1 << 17
)

// The forms of chosen names and of ids.
const (
	jobNameForm   = `^[a-z0-9][a-z0-9._-]{0,62}$`
	datasetIDForm = `^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`
	// TenantForm is the form of a tenant's name.
	TenantForm = jobNameForm
	idForm     = `^[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}$`
)

// Checker holds the compiled forms.
type Checker struct{ jobName, datasetID, id *regexp.Regexp }

func NewChecker() *Checker {
	return &Checker{regexp.MustCompile(jobNameForm), regexp.MustCompile(datasetIDForm), regexp.MustCompile(idForm)}
}

// JobName returns a job name in lower case.
func (c *Checker) JobName(name string) (string, error) {
	folded := strings.ToLower(name)
	if name == "" || c.jobName.MatchString(folded) {
		return folded, nil
	}
	return "", reason.New(reason.BadName, "job_name %.80q: want 1 to 63 letters, digits, dots, underscores or hyphens, beginning with a letter or digit; case does not count (Train and train are one job)", name)
}

func (c *Checker) Required(field, id string) error {
	if c.id.MatchString(id) {
		return nil
	}
	if id == "" {
		return reason.New(reason.BadArgument, "%s is missing", field)
	}
	return reason.New(reason.BadArgument, "%s %.80q: want at most %d letters, digits and ._:@/-", field, id, maxIDBytes)
}

func (c *Checker) DatasetID(id string) error {
	if c.datasetID.MatchString(id) {
		return nil
	}
	if id == "" {
		return reason.New(reason.BadArgument, "dataset_id is missing")
	}
	return reason.New(reason.BadName, "dataset_id %.80q: want 1 to 128 letters, digits, dots, underscores or hyphens, beginning with a letter or digit", id)
}

func (c *Checker) Stream(id *pecanv1.StreamId) error {
	if id == nil {
		return reason.New(reason.BadArgument, "the stream is missing")
	}
	return c.Required("job_id", id.JobId)
}

// First returns the first error.
func First(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func Text(field, text string) error {
	if len(text) > maxTextBytes {
		return reason.New(reason.BadArgument, "%s has %d bytes; the limit is %d", field, len(text), maxTextBytes)
	}
	return nil
}

func known[E interface {
	~int32
	Descriptor() protoreflect.EnumDescriptor
}](field string, value E) error {
	if value.Descriptor().Values().ByNumber(protoreflect.EnumNumber(value)) != nil {
		return nil
	}
	return reason.New(reason.BadArgument, "%s %d is not known to this version", field, value)
}
