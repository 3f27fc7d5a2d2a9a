package autoorder

// Predict returns the predicted seconds of CPU per element of the source in an order, by the cost model of Cost.
func Predict(p Pipeline, order []int) float64 { return newModel(p).total(order) }
