package autoorder

// Predict gives the seconds of CPU for an element of the source in an order, as Cost counts them.
func Predict(p Pipeline, order []int) float64 { return newModel(p).total(order) }
