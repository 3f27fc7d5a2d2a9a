package dispatcher

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

const (
	// maxRequestBytes bounds every single message; graphs come in chunks.
	maxRequestBytes = 16 << 20
	maxChunkBytes   = 4 << 20
	// maxElementBytes is what an element may measure at most, and unless the job says less.
	maxElementBytes = 2 << 30
	maxIDBytes      = 128
	maxTextBytes    = 4 << 10
	maxComponents   = 1 << 16
	maxSpecBytes    = 4 << 20
	maxStreamsLimit = 4096
	maxListed       = 1 << 17
)

// Names of things that people choose, and ids that programs draw.
const (
	jobNameForm   = `^[a-z0-9][a-z0-9._-]{0,62}$`
	datasetIDForm = `^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`
	idForm        = `^[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}$`
)

// checker holds the compiled forms.
type checker struct{ jobName, datasetID, id *regexp.Regexp }

func newChecker() *checker {
	return &checker{regexp.MustCompile(jobNameForm), regexp.MustCompile(datasetIDForm), regexp.MustCompile(idForm)}
}

// name gives a job name in its one spelling.
func (c *checker) name(name string) (string, error) {
	folded := strings.ToLower(name)
	if name == "" || c.jobName.MatchString(folded) {
		return folded, nil
	}
	return "", reason.New(reason.BadName, "job_name %.80q: want 1 to 63 letters, digits, dots, underscores or hyphens, beginning with a letter or digit; case does not count (Train and train are one job)", name)
}

func (c *checker) required(field, id string) error {
	if c.id.MatchString(id) {
		return nil
	}
	if id == "" {
		return reason.New(reason.BadArgument, "%s is missing", field)
	}
	return reason.New(reason.BadArgument, "%s %.80q: want at most %d letters, digits and ._:@/-", field, id, maxIDBytes)
}

func (c *checker) dataset(id string) error {
	if c.datasetID.MatchString(id) {
		return nil
	}
	if id == "" {
		return reason.New(reason.BadArgument, "dataset_id is missing")
	}
	return reason.New(reason.BadName, "dataset_id %.80q: want 1 to 128 letters, digits, dots, underscores or hyphens, beginning with a letter or digit", id)
}

func (c *checker) stream(id *pecanv1.StreamId) error {
	if id == nil {
		return reason.New(reason.BadArgument, "the stream is missing")
	}
	return c.required("job_id", id.JobId)
}

// first gives the first error.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func checkText(field, text string) error {
	if len(text) > maxTextBytes {
		return reason.New(reason.BadArgument, "%s has %d bytes, at most %d are taken", field, len(text), maxTextBytes)
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

// checkSpec checks what a trainer says of its elements, before the graph is compared with it.
func checkSpec(spec *pecanv1.DatasetSpec) error {
	if spec == nil || len(spec.Components) == 0 {
		return reason.New(reason.SpecMismatch, "the element spec is missing: a dataset yields at least one component")
	}
	if len(spec.Components) > maxComponents || len(spec.ElementSpec) > maxSpecBytes {
		return reason.New(reason.SpecMismatch, "the element spec has %d components and %d bytes, at most %d and %d are taken", len(spec.Components), len(spec.ElementSpec), maxComponents, maxSpecBytes)
	}
	switch spec.Compression {
	case "", "auto", "snappy", "none":
	default:
		return reason.New(reason.BadArgument, "compression %.40q: want auto, snappy or none", spec.Compression)
	}
	for i, component := range spec.Components {
		if err := checkComponent(component); err != nil {
			return reason.New(reason.SpecMismatch, "component %d of the element spec: %w", i, err)
		}
	}
	return checkText("tensorflow_version", spec.TensorflowVersion)
}

func checkComponent(component *pecanv1.ComponentSpec) error {
	if component == nil || component.Dtype <= 0 || component.Dtype > 255 {
		return fmt.Errorf("dtype %d is none of TensorFlow's", component.GetDtype())
	}
	if component.UnknownRank && len(component.Dims) > 0 {
		return fmt.Errorf("unknown rank, but %d dimensions", len(component.Dims))
	}
	if len(component.Dims) > 254 {
		return fmt.Errorf("%d dimensions, at most 254 are possible", len(component.Dims))
	}
	product := int64(1)
	for _, dim := range component.Dims {
		if dim < -1 {
			return fmt.Errorf("dimension %d", dim)
		}
		if dim > 0 && product > math.MaxInt64/dim {
			return fmt.Errorf("dimensions %v multiply to more than 2^63", component.Dims)
		}
		if dim > 0 {
			product *= dim
		}
	}
	return nil
}

// checkOptions fills in the defaults of a job's options and refuses what makes no sense.
func checkOptions(options *pecanv1.JobOptions) (*pecanv1.JobOptions, error) {
	o := &pecanv1.JobOptions{
		Mode: options.GetMode(), Sharding: options.GetSharding(), Seed: options.GetSeed(), SeedSet: options.GetSeedSet(),
		Compression: options.GetCompression(), MaxElementBytes: options.GetMaxElementBytes(), PayloadChecksum: options.GetPayloadChecksum(),
		AllowNondeterministic: options.GetAllowNondeterministic(), Order: options.GetOrder(), OrderTolerance: options.GetOrderTolerance(),
	}
	if err := first(known("mode", o.Mode), known("sharding", o.Sharding), known("compression", o.Compression), checkOrder(o)); err != nil {
		return nil, err
	}
	off := pecanv1.Sharding_SHARDING_OFF
	switch {
	case o.Mode == pecanv1.Mode_MODE_OFF && o.Sharding != off && o.Sharding != pecanv1.Sharding_SHARDING_UNSPECIFIED:
		return nil, reason.New(reason.BadArgument, "mode OFF gives every worker the whole dataset and does not go with sharding %v", o.Sharding)
	case o.Mode != pecanv1.Mode_MODE_OFF && o.Mode != pecanv1.Mode_MODE_UNSPECIFIED && o.Sharding == off:
		return nil, reason.New(reason.BadArgument, "sharding OFF gives every worker the whole dataset and does not go with mode %v", o.Mode)
	case o.Mode == pecanv1.Mode_MODE_OFF || o.Sharding == off:
		o.Mode, o.Sharding = pecanv1.Mode_MODE_OFF, off
	case o.Mode == pecanv1.Mode_MODE_UNSPECIFIED:
		o.Mode = pecanv1.Mode_MODE_EXACTLY_ONCE
	}
	if o.Sharding == pecanv1.Sharding_SHARDING_UNSPECIFIED {
		o.Sharding = pecanv1.Sharding_SHARDING_DYNAMIC
	}
	if o.Compression == pecanv1.Compression_COMPRESSION_UNSPECIFIED {
		o.Compression = pecanv1.Compression_COMPRESSION_AUTO
	}
	if o.MaxElementBytes == 0 {
		o.MaxElementBytes = maxElementBytes
	}
	if o.MaxElementBytes < 0 || o.MaxElementBytes > maxElementBytes {
		return nil, reason.New(reason.BadArgument, "max_element_bytes %d: want 1 to %d (2 GiB), or 0 for the most", o.MaxElementBytes, int64(maxElementBytes))
	}
	if !o.SeedSet {
		o.Seed = 0
	}
	return o, nil
}

// checkOrder fills in who decides the order of steps, and how far elements may differ for it.
func checkOrder(o *pecanv1.JobOptions) error {
	if err := first(known("order", o.Order), known("order_tolerance", o.OrderTolerance)); err != nil {
		return err
	}
	unsaid := o.OrderTolerance == pecanv1.OrderTolerance_ORDER_TOLERANCE_UNSPECIFIED
	switch o.Order {
	case pecanv1.Order_ORDER_UNSPECIFIED:
		o.Order = pecanv1.Order_ORDER_OFF
	case pecanv1.Order_ORDER_PAPER:
		if !unsaid && o.OrderTolerance != pecanv1.OrderTolerance_ORDER_TOLERANCE_ANY {
			return reason.New(reason.BadArgument, "order PAPER asks for no bound on what it changes and does not go with order_tolerance %v", o.OrderTolerance)
		}
	}
	o.OrderTolerance = o.EffectiveTolerance()
	return nil
}

// hello checks a worker's first message, apart from whether the worker may come.
func (c *checker) hello(m *pecanv1.WorkerHello) error {
	address := m.GetAddress()
	if err := first(
		c.required("worker_id", address.GetWorkerId()), checkText("host_id", address.GetHostId()),
		checkText("tensorflow_version", m.GetTensorflowVersion()), checkText("version", m.GetVersion()),
		checkText("cluster_id", m.GetClusterId()),
	); err != nil {
		return err
	}
	switch {
	case m.MaxStreams < 1 || m.MaxStreams > maxStreamsLimit:
		return reason.New(reason.BadArgument, "max_streams %d: want 1 to %d", m.MaxStreams, maxStreamsLimit)
	case m.Cores < 0:
		return reason.New(reason.BadArgument, "cores %d: must not be negative", m.Cores)
	case m.Placement != "" && m.Placement != "local" && m.Placement != "remote":
		return reason.New(reason.BadArgument, "placement %.40q: want local or remote", m.Placement)
	case address.Tcp == "" && address.Unix == "":
		return reason.New(reason.BadArgument, "worker %s has no address to be read at", address.WorkerId)
	case address.Unix != "" && (address.Unix[0] != '@' || len(address.Unix) > 107):
		return reason.New(reason.BadArgument, "unix address %.120q: want the name of an abstract socket (@...), at most 107 bytes", address.Unix)
	case len(m.Held) > maxListed:
		return reason.New(reason.BadArgument, "%d held streams, at most %d are taken", len(m.Held), maxListed)
	}
	for _, held := range m.Held {
		if held == nil || held.Id == nil {
			return reason.New(reason.BadArgument, "a held stream has no id")
		}
	}
	if address.Tcp == "" {
		return nil
	}
	return checkAdvertised(address.Tcp)
}

// checkAdvertised refuses addresses that no trainer can or should dial.
func checkAdvertised(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return reason.New(reason.BadArgument, "worker address %.200q: want HOST:PORT: %w", address, err)
	}
	if number, err := strconv.Atoi(port); err != nil || number < 1 || number > 65535 {
		return reason.New(reason.BadArgument, "worker address %.200q: the port must be 1 to 65535", address)
	}
	if host == "" || len(host) > 255 || strings.ContainsAny(host, " \t\r\n\x00/") {
		return reason.New(reason.BadArgument, "worker address %.200q: the host is missing or no host name", address)
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return nil
	}
	switch {
	case ip.IsUnspecified():
		return reason.New(reason.BadArgument, "worker address %s cannot be dialled; tell the worker where it is reached with --advertise HOST:PORT", address)
	case ip.IsMulticast(), ip.Is4() && ip.IsLinkLocalUnicast():
		return reason.New(reason.BadArgument, "worker address %s is a link-local or multicast address, which trainers do not dial", address)
	}
	return nil
}

// cleanHeartbeat makes numbers that policies and status read harmless.
func cleanHeartbeat(beat *pecanv1.WorkerHeartbeat) {
	if len(beat.Streams) > maxListed {
		beat.Streams = beat.Streams[:maxListed]
	}
	beat.CpuS = cleanSeconds(beat.CpuS)
	beat.ResidentBytes = max(beat.ResidentBytes, 0)
}

// cleanFigures makes the figures of a job's nodes harmless.
func cleanFigures(figures *pecanv1.JobMetrics) {
	for _, nodes := range []*[]*pecanv1.NodeMetrics{&figures.Nodes, &figures.Ordered} {
		if len(*nodes) > maxListed {
			*nodes = (*nodes)[:maxListed]
		}
		for _, node := range *nodes {
			node.SelfCpuS = cleanSeconds(node.SelfCpuS)
			node.Node, node.Op = shortText(node.Node), shortText(node.Op)
		}
	}
}

// cleanTrial makes what a worker found in a trial harmless. A difference that is no number is larger than any.
func cleanTrial(trial *pecanv1.OrderTrial) {
	if trial == nil {
		return
	}
	trial.Refused = shortText(trial.Refused)
	trial.OriginalS, trial.OrderedS, trial.CpuS = cleanSeconds(trial.OriginalS), cleanSeconds(trial.OrderedS), cleanSeconds(trial.CpuS)
	for _, saved := range []*float64{&trial.SavedLowS, &trial.SavedHighS} {
		if math.IsNaN(*saved) {
			*saved = 0
		}
	}
	if len(trial.Components) > maxComponents {
		trial.Components = trial.Components[:maxComponents]
	}
	for _, difference := range trial.Components {
		for _, value := range []*float64{&difference.MaxDifference, &difference.Bound, &difference.Range} {
			if math.IsNaN(*value) {
				*value = math.Inf(1)
			}
		}
	}
}

func cleanSeconds(s float64) float64 {
	if math.IsNaN(s) || s < 0 || s > 1e12 {
		return 0
	}
	return s
}

// shortText cuts a text of a peer that is stored or logged.
func shortText(text string) string {
	if len(text) > maxTextBytes {
		return strings.ToValidUTF8(text[:maxTextBytes], "") + "..."
	}
	return text
}

// discardUnknown drops fields that this version does not know, so that they reach neither the journal nor a peer.
func discardUnknown(m protoreflect.Message) {
	if len(m.GetUnknown()) > 0 {
		m.SetUnknown(nil)
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.Message() == nil || field.IsMap():
		case field.IsList():
			list := value.List()
			for i := range list.Len() {
				discardUnknown(list.Get(i).Message())
			}
		default:
			discardUnknown(value.Message())
		}
		return true
	})
}
