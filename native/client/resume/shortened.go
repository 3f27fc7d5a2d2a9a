package resume

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// maxRanks bounds the steps of an order that a token of a plan with groups lists. Such a token has at most 1 KiB while the
// trainer reads in order of groups, and 128 ranks are 128 bytes of it.
const maxRanks = 128

// shortened returns a token of a plan with groups in its short form.
func shortened(t *pecanv1.Token) *pecanv1.Token {
	t = proto.CloneOf(t)
	position := t.GetPosition()
	if order := position.GetOrder(); len(order.GetSteps()) > maxRanks {
		order.Steps = nil
	}
	if len(position.GetJoins()) > 0 {
		t.Format, position.Joins, position.JoinsList = listFormat, nil, listOf(position.Joins)
	}
	if len(position.GetCarry()) > 0 {
		t.Format, position.Carry, position.CarryList = listFormat, nil, listOf(position.Carry)
	}
	return t
}

// expand replaces the lists of a short form.
func expand(position *pecanv1.Position) error {
	for _, c := range []struct {
		list **pecanv1.KeptList
		rows *[]*pecanv1.KeptRows
	}{{&position.JoinsList, &position.Joins}, {&position.CarryList, &position.Carry}} {
		if *c.list == nil {
			continue
		}
		rows, err := rowsOf(*c.list)
		if err != nil {
			return err
		}
		if len(*c.rows) > 0 {
			return errors.New("it lists the rows of other epochs twice")
		}
		*c.list, *c.rows = nil, rows
	}
	return nil
}

func listOf(rows []*pecanv1.KeptRows) *pecanv1.KeptList {
	list := &pecanv1.KeptList{}
	var epochs, streams []uint64
	for _, kept := range rows {
		epochs, streams = append(epochs, kept.GetEpoch()), append(streams, uint64(kept.GetStream()))
		list.Skips, list.Rows = append(list.Skips, kept.GetSkip()), append(list.Rows, kept.GetRows())
	}
	list.Epochs, list.Streams = withoutZeros(pecanv1.Differences(epochs)), withoutZeros(pecanv1.Differences(streams))
	list.Skips = withoutZeros(list.Skips)
	return list
}

func rowsOf(list *pecanv1.KeptList) ([]*pecanv1.KeptRows, error) {
	n := len(list.GetRows())
	for _, column := range []int{len(list.GetEpochs()), len(list.GetStreams()), len(list.GetSkips())} {
		if column > n {
			return nil, fmt.Errorf("a list of %d rows of other epochs has a column of %d", n, column)
		}
	}
	epochs, err := pecanv1.Numbers[uint64](withZeros(list.GetEpochs(), n))
	if err != nil {
		return nil, err
	}
	streams, err := pecanv1.Numbers[uint32](withZeros(list.GetStreams(), n))
	if err != nil {
		return nil, err
	}
	skips := withZeros(list.GetSkips(), n)
	rows := make([]*pecanv1.KeptRows, n)
	for i := range rows {
		rows[i] = &pecanv1.KeptRows{Epoch: epochs[i], Stream: streams[i], Skip: skips[i], Rows: list.GetRows()[i]}
	}
	return rows, nil
}

// withoutZeros returns a column without the zeros at its end.
func withoutZeros[Number int64 | uint64](column []Number) []Number {
	for len(column) > 0 && column[len(column)-1] == 0 {
		column = column[:len(column)-1]
	}
	return column
}

// withZeros returns a column of n numbers.
func withZeros[Number int64 | uint64](column []Number, n int) []Number {
	return append(column, make([]Number, n-len(column))...)
}
