"""A target that several processes share: tensor parallel by torch.distributed, rank 0 serves, the others follow."""
