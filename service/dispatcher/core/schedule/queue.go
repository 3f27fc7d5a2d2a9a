package schedule

import "container/heap"

// queue is a heap. The item that is next is on top. Each item knows its place in the queue, -1 outside of it.
type queue[T any] struct {
	items  []*T
	before func(a, b *T) bool
	at     func(*T) *int
}

// Len implements heap.Interface.
func (q *queue[T]) Len() int { return len(q.items) }

// Less implements heap.Interface.
func (q *queue[T]) Less(i, j int) bool { return q.before(q.items[i], q.items[j]) }

// Swap implements heap.Interface.
func (q *queue[T]) Swap(i, j int) {
	q.items[i], q.items[j] = q.items[j], q.items[i]
	*q.at(q.items[i]), *q.at(q.items[j]) = i, j
}

// Push implements heap.Interface.
func (q *queue[T]) Push(x any) {
	item := x.(*T)
	*q.at(item) = len(q.items)
	q.items = append(q.items, item)
}

// Pop implements heap.Interface.
func (q *queue[T]) Pop() any {
	last := len(q.items) - 1
	item := q.items[last]
	q.items[last] = nil
	q.items = q.items[:last]
	*q.at(item) = -1
	return item
}

// set moves an item to its place, or out of the queue.
func (q *queue[T]) set(item *T, in bool) {
	switch at := *q.at(item); {
	case in && at < 0:
		heap.Push(q, item)
	case in:
		heap.Fix(q, at)
	case at >= 0:
		heap.Remove(q, at)
	}
}

// top returns the next item; nil if the queue is empty.
func (q *queue[T]) top() *T {
	if len(q.items) == 0 {
		return nil
	}
	return q.items[0]
}

// first returns the item nearest to the top for which the condition holds; nil if there is none.
func (q *queue[T]) first(holds func(*T) bool) (found *T) {
	if top := q.top(); top == nil || holds(top) {
		return top
	}
	var popped []*T
	for found == nil && len(q.items) > 0 {
		item := heap.Pop(q).(*T)
		if popped = append(popped, item); holds(item) {
			found = item
		}
	}
	for _, item := range popped {
		heap.Push(q, item)
	}
	return found
}
