package adopt

import "context"

func (a *adoption) takeImages(ctx context.Context) error { return nil }
