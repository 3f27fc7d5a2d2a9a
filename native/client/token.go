package client

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

const (
	// tokenPrefix begins every token, so that people know one when they see it.
	tokenPrefix = "pecan1."
	tokenFormat = 1
	// maxToken bounds what is looked at; one of 65,536 streams is shorter.
	maxToken = 2 << 20
)

// Read notes that the training loop makes an iterator, and gives the number by which Save knows it.
func (r *Renewable) Read() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.positions.read()
}

// Save gives the token of the position behind the first consumed elements of an iterator that Read gave the number of; with 0 behind
// those of all iterators since the dataset was made or its state was loaded. An error in an element's place counts as one. ended: the
// training loop has no iterator open, and its next one begins at the start of a pass.
func (r *Renewable) Save(reading, consumed uint64, ended bool) (string, error) {
	r.mu.Lock()
	job, positions := r.job, r.positions
	r.mu.Unlock()
	if err := resumable(job.consumer); err != nil {
		return "", err
	}
	at, err := positions.at(reading, consumed, ended)
	if err != nil {
		return "", err
	}
	return encodeToken(tokenOf(job.consumer, at))
}

// Load has the next iteration begin where a token says, in a new job of the token's seed. Iterations that are open end.
func (r *Renewable) Load(ctx context.Context, token string) error {
	t, err := decodeToken(token)
	if err != nil {
		return err
	}
	r.loading.Lock()
	defer r.loading.Unlock()
	r.mu.Lock()
	old, closed := r.job, r.closed
	r.mu.Unlock()
	if closed {
		return reason.New(reason.Closed, "load a state: the dataset was closed")
	}
	if err := resumable(old.consumer); err != nil {
		return err
	}
	if err := checkToken(t, old.consumer, r.spec.Options); err != nil {
		return err
	}
	fresh, err := r.create(ctx, r.spec.seeded(t.GetSeed()))
	if err != nil {
		return err
	}
	if err := checkToken(t, fresh.consumer, r.spec.Options); err != nil {
		fresh.shut()
		return err
	}
	r.mu.Lock()
	if r.job != old || r.closed {
		r.mu.Unlock()
		fresh.shut()
		return reason.New(reason.Closed, "load a state: the dataset's job was closed or made anew meanwhile; load it again")
	}
	r.job, r.positions = fresh, r.positions.loaded(&Resume{Position: t.GetPosition(), Passes: t.GetPasses(), Elements: t.GetElements(), fresh: true})
	r.mu.Unlock()
	old.shut()
	return nil
}

// resumable refuses jobs in which one trainer's position does not say what comes next.
func resumable(c *Consumer) error {
	switch {
	case c.shared():
		return reason.New(reason.Unsupported, "a position is that of one trainer, and job %q is shared by its name: what the others had is not in it. Leave job_name out where a trainer shall go on where it stopped", c.Request.GetJobName())
	case c.Plan.GetNumStreams() == 0:
		return reason.New(reason.Unsupported, "with sharding OFF every worker gives the whole dataset, and a position in that means nothing to other workers. Choose another sharding policy where a trainer shall go on where it stopped")
	}
	return nil
}

// checkToken refuses a token that would find other elements under the same indices.
func checkToken(t *pecanv1.Token, c *Consumer, requested *pecanv1.JobOptions) error {
	differs := func(what, then, now any) error {
		return reason.New(reason.BadArgument, "load a state: it was saved with %s %v, and this dataset has %v. Its elements would not be those that come next", what, then, now)
	}
	switch plan := c.Plan; {
	case t.GetFingerprint() != plan.GetFingerprint():
		return differs("the graph", t.GetFingerprint(), plan.GetFingerprint())
	case t.GetMode() != c.Options.GetMode():
		return differs("the mode", t.GetMode(), c.Options.GetMode())
	case t.GetNumStreams() != plan.GetNumStreams():
		return differs("a number of streams of", t.GetNumStreams(), plan.GetNumStreams())
	case t.GetPlanHash() != plan.GetHash():
		return differs("the plan", t.GetPlanHash(), plan.GetHash())
	case t.GetPosition().GetOrder().GetHash() != "" && c.Options.GetOrder() <= pecanv1.Order_ORDER_OFF:
		return reason.New(reason.BadArgument, "load a state: it was saved where steps ran in another order than the registered one, and this dataset has order=\"off\". Give the `order` and `order_tolerance` with which it was saved")
	case requested.GetSeedSet() && t.GetSeed() != requested.GetSeed():
		return differs("the seed", t.GetSeed(), requested.GetSeed())
	}
	return standsIn(t, c.Plan)
}

// standsIn refuses a token of a place that no pass of the plan has: the dispatcher would refuse a stream that is not there with the first
// element, when the state has taken the place of the old one, and with a pass too many elements would come again.
func standsIn(t *pecanv1.Token, plan *pecanv1.Plan) error {
	position, streams := t.GetPosition(), uint64(plan.GetNumStreams())
	if plan.HasClosing() {
		streams++
	}
	// The turn is behind the stream that was last.
	named := max(uint64(len(position.GetNext())), uint64(position.GetTurn()))
	for _, stream := range position.GetEnded() {
		named = max(named, uint64(stream)+1)
	}
	if named > streams {
		return reason.New(reason.BadArgument, "load a state: it names stream %d, and the streams of this dataset are %d, from 0 on; give what state_dict() gave", named-1, streams)
	}
	if repeat := plan.GetRepeat(); repeat >= 0 && t.GetPasses() >= uint64(max(1, repeat)) {
		return reason.New(reason.BadArgument, "load a state: it stands behind %d passes, of %d that this dataset repeats in all; give what state_dict() gave", t.GetPasses(), max(1, repeat))
	}
	return nil
}

// tokenOf is the token of a place in a consumer's job.
func tokenOf(c *Consumer, at *Resume) *pecanv1.Token {
	return &pecanv1.Token{
		Format: tokenFormat, Fingerprint: c.Plan.GetFingerprint(), PlanHash: c.Plan.GetHash(), Mode: c.Options.GetMode(),
		NumStreams: c.Plan.GetNumStreams(), Seed: c.Options.GetSeed(), Position: at.Position, Passes: at.Passes, Elements: at.Elements,
	}
}

func encodeToken(t *pecanv1.Token) (string, error) {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(t)
	if err != nil {
		return "", reason.New(reason.Internal, "encode a state: %w", err)
	}
	data = binary.LittleEndian.AppendUint32(data, crc32.Checksum(data, frame.Castagnoli))
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(data), nil
}

func decodeToken(text string) (*pecanv1.Token, error) {
	bad := func(why string) (*pecanv1.Token, error) {
		return nil, reason.New(reason.BadArgument, "load a state: %s; give what state_dict() gave", why)
	}
	if len(text) > maxToken {
		return bad("it is longer than any that was ever saved")
	}
	body, ok := strings.CutPrefix(text, tokenPrefix)
	if !ok {
		return bad("it does not begin with " + tokenPrefix)
	}
	data, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil || len(data) < 4 {
		return bad("it was cut or changed")
	}
	data, sum := data[:len(data)-4], binary.LittleEndian.Uint32(data[len(data)-4:])
	if crc32.Checksum(data, frame.Castagnoli) != sum {
		return bad("it was cut or changed")
	}
	t := new(pecanv1.Token)
	if err := proto.Unmarshal(data, t); err != nil {
		return bad("it was cut or changed")
	}
	if t.GetFormat() != tokenFormat {
		return nil, reason.New(reason.BadArgument, "load a state: it has format %d, and this version of Pecan knows format %d; restore it with the version that saved it", t.GetFormat(), tokenFormat)
	}
	if t.GetPosition() == nil {
		return bad("it has no position")
	}
	return t, nil
}
