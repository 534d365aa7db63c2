"""Vision and text transformers, and the contrastive models and detectors built from them."""
