package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/client/element"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tensorflow "github.com/pecan-ml/pecan/proto/tensorflow"
)

const (
	dtInt64  = 9
	dtString = 7
	// sources is the number of shares of each source. streams is the number of streams they are divided into, unless the
	// dataset says something else.
	sources = 16
	streams = 4
	// inTurn is how many streams deterministic mode reads in turn.
	inTurn = 16
)

// dataset is a graph of testdata with its expected elements.
type dataset struct {
	name string
	spec *pecanv1.DatasetSpec
	// share returns the elements of one share of the source, in order. Each element is a list of ids.
	share func(share int64) [][]int64
	// words is the size of component 1; 0 for text.
	words int
	// known is set if the plan knows the number of elements.
	known bool
	// cached is set if the dataset has a cached step.
	cached bool
	// chosen is set if decisions say whether a step is cached, and which.
	chosen bool
	// shuffled is set if seeds decide the order in a stream. An undisturbed run shows it.
	shuffled bool
	// shares is the number of shares of the source, if it is not sources. asked is the number of streams that the job
	// asks for; 0 lets the plan choose.
	shares, asked int64

	once   sync.Once
	bytes  []byte
	orders map[uint64][]int64
}

// divided returns the dataset with another number of streams. If there are more streams than shares, its source is
// longer. A cached source is not so long that its parts have several shares.
func (d *dataset) divided(streams int64) *dataset {
	if d.cached {
		streams = min(streams, shortParts)
	}
	return &dataset{
		name: d.name, spec: d.spec, share: d.share, words: d.words, known: d.known, cached: d.cached, chosen: d.chosen, shuffled: d.shuffled,
		shares: max(sources, streams), asked: streams,
	}
}

// shortParts is the number of shares up to which each share of a source is a part (service/graph/split).
const shortParts = 128

func (d *dataset) numShares() int64 { return max(d.shares, sources) }

func (d *dataset) numStreams() int64 {
	if d.asked > 0 {
		return d.asked
	}
	return streams
}

func scalars(ids ...int64) [][]int64 {
	var out [][]int64
	for _, id := range ids {
		out = append(out, []int64{id})
	}
	return out
}

func from(first, count int64) []int64 {
	ids := make([]int64, count)
	for i := range ids {
		ids[i] = first + int64(i)
	}
	return ids
}

func spec(second *pecanv1.ComponentSpec, batched bool) *pecanv1.DatasetSpec {
	first := &pecanv1.ComponentSpec{Dtype: dtInt64}
	if batched {
		first.Dims, second.Dims = []int64{-1}, append([]int64{-1}, second.Dims...)
	}
	return &pecanv1.DatasetSpec{Components: []*pecanv1.ComponentSpec{first, second}}
}

func words(n int64) *pecanv1.ComponentSpec {
	return &pecanv1.ComponentSpec{Dtype: dtInt64, Dims: []int64{n}}
}

var (
	batches = &dataset{name: "batches", words: 256, known: true, spec: spec(words(256), true), share: func(share int64) [][]int64 {
		return [][]int64{from(share*15, 15)}
	}}
	texts = &dataset{name: "texts", spec: spec(&pecanv1.ComponentSpec{Dtype: dtString}, false), share: func(share int64) [][]int64 {
		var out [][]int64
		for _, id := range from(share*10, 10) {
			if id%3 > 0 {
				out = append(out, []int64{id})
			}
		}
		return out
	}}
	uneven = &dataset{name: "uneven", words: 2560, spec: spec(words(2560), false), share: func(share int64) [][]int64 {
		return scalars(from(share*100, share*7%23)...)
	}}
	shuffled = &dataset{name: "shuffled", words: 128, shuffled: true, spec: spec(words(128), false), share: func(share int64) [][]int64 {
		return scalars(from(share*10, 10)...)
	}}
	free   = &dataset{name: "free", words: 256, known: true, spec: spec(words(256), true), share: batches.share}
	cached = &dataset{name: "cached", words: 512, cached: true, spec: spec(words(512), false), share: func(share int64) [][]int64 {
		return scalars(from(share*10, 10)...)
	}}
	// decided has no mark: decisions say which step is cached.
	decided = &dataset{name: "cached", words: 512, cached: true, chosen: true, spec: spec(words(512), false), share: cached.share}
	large   = &dataset{name: "large", words: 128 << 10, spec: spec(words(128<<10), false), share: func(share int64) [][]int64 {
		return scalars(share)
	}}
)

func (d *dataset) graph() []byte {
	d.once.Do(func() {
		data, err := os.ReadFile(filepath.Join("testdata", d.name+".graph"))
		if err != nil {
			panic(err)
		}
		if d.shares > sources {
			data = longer(data, d.shares)
		}
		if d.chosen {
			data = bytes.ReplaceAll(data, []byte(forcedMark), []byte(passedMark))
		}
		d.bytes = data
	})
	return d.bytes
}

// longer returns a graph whose ranges have this many shares.
func longer(data []byte, shares int64) []byte {
	graph := new(tensorflow.GraphDef)
	if err := proto.Unmarshal(data, graph); err != nil {
		panic(err)
	}
	nodes := map[string]*tensorflow.NodeDef{}
	for _, node := range graph.GetNode() {
		nodes[node.GetName()] = node
	}
	for _, node := range graph.GetNode() {
		if node.GetOp() == "RangeDataset" {
			stop := nodes[node.GetInput()[1]].GetAttr()["value"].GetTensor()
			stop.Int64Val = []int64{stop.GetInt64Val()[0] / sources * shares}
		}
	}
	data, err := proto.Marshal(graph)
	if err != nil {
		panic(err)
	}
	return data
}

// ids returns all ids of an epoch.
func (d *dataset) ids() []int64 {
	var ids []int64
	for share := range d.numShares() {
		for _, element := range d.share(share) {
			ids = append(ids, element...)
		}
	}
	return ids
}

// stream returns the elements of a stream. A shuffled stream yields them in another order. Up to 16 streams take the
// shares in turn. Of more streams, each group of 16 does so with a contiguous part of the shares, and the parts are as
// equal as possible.
func (d *dataset) stream(number int64) [][]int64 {
	first, step, stop := number, d.numStreams(), d.numShares()
	if step > inTurn {
		group := number / inTurn * inTurn
		next := min(group+inTurn, step)
		before := func(stream int64) int64 { return stop/step*stream + min(stream, stop%step) }
		first, step, stop = before(group)+number-group, next-group, before(next)
	}
	var elements [][]int64
	for share := first; share < stop; share += step {
		elements = append(elements, d.share(share)...)
	}
	return elements
}

// elements counts the elements of an epoch.
func (d *dataset) elements() int {
	n := 0
	for share := range d.numShares() {
		n += len(d.share(share))
	}
	return n
}

// order returns the order of deterministic mode. It has element 0 of each stream of a group, then element 1 of each, without
// ended streams. The next group follows.
func (d *dataset) order(t *testing.T, epoch uint64) []int64 {
	if d.shuffled {
		return d.orders[epoch]
	}
	var ids []int64
	for group := int64(0); group < d.numStreams(); group += inTurn {
		var queues [][][]int64
		for number := group; number < min(group+inTurn, d.numStreams()); number++ {
			queues = append(queues, d.stream(number))
		}
		for left := true; left; {
			left = false
			for i := range queues {
				if len(queues[i]) > 0 {
					ids = append(ids, queues[i][0]...)
					queues[i] = queues[i][1:]
					left = true
				}
			}
		}
	}
	return ids
}

// recordOrders finds the order of a shuffled dataset in an undisturbed run with one worker.
func (d *dataset) recordOrders(t *testing.T, epochs int) {
	if d.orders != nil {
		return
	}
	orders := map[uint64][]int64{}
	simulate(t, options{workers: 1}, func(c *cluster) {
		tr := c.join(0, wanted{dataset: d, mode: pecanv1.Mode_MODE_DETERMINISTIC})
		if err := tr.read(epochs); err != nil {
			t.Fatal(err)
		}
		for _, v := range c.ledger.visits {
			orders[v.epoch] = append(orders[v.epoch], v.ids...)
		}
		c.ledger.audit(d, exactly, epochs)
		for epoch := range uint64(epochs) {
			if len(orders[epoch]) == 0 {
				t.Errorf("a run without faults read no epoch %d, but %v, in %v. The journal: %v", epoch, slices.Sorted(maps.Keys(orders)), time.Since(c.began), c.journal())
			}
		}
	})
	d.orders = orders
}

// check compares component 1 with the ids of component 0.
func (d *dataset) check(ids []int64, t *element.Tensor) error {
	if d.words == 0 {
		want := strings.Repeat(strconv.FormatInt(ids[0], 10), int(ids[0]%97+1))
		if string(t.Data) != want {
			return fmt.Errorf("id %d with the text %.40q", ids[0], t.Data)
		}
		return nil
	}
	if len(t.Data) != len(ids)*d.words*8 {
		return fmt.Errorf("%d ids with %d bytes", len(ids), len(t.Data))
	}
	for i, id := range ids {
		want := binary.LittleEndian.AppendUint64(nil, uint64(id*3+1))
		if got := t.Data[i*d.words*8 : (i+1)*d.words*8]; !bytes.Equal(got, bytes.Repeat(want, d.words)) {
			return fmt.Errorf("the values of id %d are not those it should have", id)
		}
	}
	return nil
}
