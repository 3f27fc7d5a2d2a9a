package pecanv1

// Add adds what others did again, and how they began, to a sum.
func (r *Recovery) Add(more *Recovery) {
	r.Recomputed += more.GetRecomputed()
	r.Started += more.GetStarted()
	r.Restored += more.GetRestored()
	r.Saved += more.GetSaved()
	r.NotSaved += more.GetNotSaved()
	r.Damaged += more.GetDamaged()
}
