package epoch

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// playedEpoch plays the dispatcher and the workers of an epoch: streams are listed and elements arrive in random order.
type playedEpoch struct {
	*Epoch
	t      *testing.T
	random *rand.Rand
	counts []uint64
	// unlisted has the streams that no update has listed.
	unlisted []uint32
	version  uint64
}

func playEpoch(t *testing.T, plan *pecanv1.Plan, counts []uint64, from *pecanv1.Position, seed uint64) *playedEpoch {
	e := testEpoch(plan)
	e.options.Deterministic = true
	e.ResumeAt, e.cursor = from, from.GetTurn()
	start := e.StartProgress()
	e.streams.resumed = start.Next
	p := &playedEpoch{Epoch: e, t: t, random: rand.New(rand.NewPCG(seed, 0)), counts: counts}
	ended, err := from.EndedStreams(plan.TotalStreams())
	if err != nil {
		t.Fatal(err)
	}
	for stream := range plan.TotalStreams() {
		if !Bitmap(ended).Has(stream) {
			p.unlisted = append(p.unlisted, stream)
		}
	}
	p.apply(p.update(&pecanv1.EpochUpdate{Full: true}), true)
	return p
}

func (p *playedEpoch) update(u *pecanv1.EpochUpdate) *pecanv1.EpochUpdate {
	p.version++
	u.Version, u.TotalStreams, u.StreamsFinal = p.version, uint32(len(p.counts)), true
	return u
}

// step lists a stream, or lets an element or an end arrive.
func (p *playedEpoch) step() {
	if n := len(p.unlisted); n > 0 && p.random.IntN(2) == 0 {
		// The dispatcher lists streams of later groups late.
		at := p.random.IntN(min(n, 6))
		one := &pecanv1.ConsumerStream{Stream: p.unlisted[at], Lease: 1, Assignment: 1, StartIndex: p.streams.resumed[p.unlisted[at]]}
		p.unlisted = slices.Delete(p.unlisted, at, at+1)
		p.apply(p.update(&pecanv1.EpochUpdate{Streams: []*pecanv1.ConsumerStream{one}}), false)
		return
	}
	if len(p.streams.byNumber) == 0 {
		return
	}
	st := p.streams.byNumber[p.random.IntN(len(p.streams.byNumber))]
	switch {
	case !st.reading():
	case st.next == p.counts[st.number]:
		st.end()
		p.settle(st)
	default:
		arrive(p.Epoch, st.number)
	}
}

// read returns up to n elements.
func (p *playedEpoch) read(n int) (elements []string) {
	for tries := 0; len(elements) < n; tries++ {
		rows, found, err := p.Dequeue(1, false)
		switch {
		case found == ElementFailed:
			elements = append(elements, fmt.Sprintf("%d/%d", rows.Stream, rows.Index))
		case found == End:
			return elements
		case found == Broken || tries > 1_000_000:
			p.t.Fatalf("after %d elements: %v", len(elements), err)
		default:
			p.step()
		}
	}
	return elements
}

// inGroups returns the order of the elements that a plan promises.
func inGroups(plan *pecanv1.Plan, counts []uint64) (elements []string) {
	streams, group := uint32(plan.NumStreams), uint32(plan.Group)
	if group == 0 {
		group = streams
	}
	turn := func(numbers ...uint32) {
		for index := uint64(0); ; index++ {
			any := false
			for _, n := range numbers {
				if index < counts[n] {
					elements, any = append(elements, fmt.Sprintf("%d/%d", n, index)), true
				}
			}
			if !any {
				return
			}
		}
	}
	for first := uint32(0); first < streams; first += group {
		var numbers []uint32
		for n := first; n < min(first+group, streams); n++ {
			numbers = append(numbers, n)
		}
		turn(numbers...)
		if plan.HasClosing() {
			turn(streams + first/group)
		}
	}
	if plan.Closings() > 1 {
		turn(plan.TotalStreams() - 1)
	}
	return elements
}

func TestGroupsAreReadOneAfterTheOther(t *testing.T) {
	for _, plan := range []*pecanv1.Plan{
		{NumStreams: 5}, {NumStreams: 7, Group: 3}, {NumStreams: 40, Group: 4}, {NumStreams: 4, Group: 4},
		{NumStreams: 5, BatchStrategy: pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING},
		{NumStreams: 3, Group: 4, BatchStrategy: pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING},
		{NumStreams: 9, Group: 4, BatchStrategy: pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING},
		{NumStreams: 33, Group: 2, BatchStrategy: pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING},
	} {
		for seed := range uint64(20) {
			random := rand.New(rand.NewPCG(seed, 1))
			counts := make([]uint64, plan.TotalStreams())
			for i := range counts {
				// Many streams are empty, and so are whole groups.
				counts[i] = uint64(max(0, random.IntN(9)-4))
			}
			want := inGroups(plan, counts)
			// The trainer continues from positions several times. It knows only their bytes. It asks for a position while the
			// epoch is open, or after it has closed an epoch that the dispatcher has lost.
			var got, positions []string
			var position *pecanv1.Position
			for round := range uint64(4) {
				p := playEpoch(t, plan, counts, position, 10*seed+round)
				if round == 3 {
					got = append(got, p.read(len(want)+1)...)
					break
				}
				got = append(got, p.read(random.IntN(len(want)/2+1))...)
				for range random.IntN(20) {
					p.step()
				}
				if random.IntN(2) == 0 {
					p.dropQueues()
				}
				data, err := proto.Marshal(p.Position())
				if err != nil {
					t.Fatal(err)
				}
				position = new(pecanv1.Position)
				if err := proto.Unmarshal(data, position); err != nil {
					t.Fatal(err)
				}
				positions = append(positions, fmt.Sprintf("after %d: %v", len(got), position))
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%v, counts %v, continued at\n%s:\ngot  %v\nwant %v", plan, counts, strings.Join(positions, "\n"), got, want)
			}
		}
	}
}
